//! Measures the worker alone: clients send requests in a closed loop over many connections.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use super::poll::{Poll, Ready};
use super::{Worker, http};

/// The result of the measurement.
pub struct Ceiling {
    pub connections: usize,
    pub requests_per_second: f64,
    /// CPU seconds of the worker's threads for 1000 requests.
    pub cpu: f64,
}

/// A request as the engine makes it for a step without attributes.
const BODY: &str = concat!(
    r#"{"context":{"processId":"p-12345","processExecutionId":"0190f3a0-0000-7000-8000-000000000000","#,
    r#""owner":"app","database":"bench","processStartedTimestamp":1700000000,"stateExecutionId":"S3-1","attempt":1,"#,
    r#""callId":"0190f3a0-0000-7000-8000-000000000000/S3-1/execute","firstAttemptTimestamp":1700000000,"timeoutSeconds":30},"#,
    r#""processType":"chain","stateId":"S3","stateInput":null,"loadedGlobalAttributes":{},"#,
    r#""loadedLocalAttributes":{},"commandResults":{"timerResults":[],"localQueueResults":[],"globalQueueResults":[]}}"#
);

/// Sends requests over this number of connections for this time. The client shares the machine, so the result is the
/// ceiling of both together.
pub fn measure(worker: &Worker, connections: usize, length: Duration) -> Result<Ceiling, String> {
    run(worker, connections, length).map_err(|error| format!("the worker alone: {error}"))
}

fn run(worker: &Worker, connections: usize, length: Duration) -> std::io::Result<Ceiling> {
    let request = format!(
        "POST /api/v1/xdb/worker/async-state/execute HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\n\
         Idempotency-Key: 0190f3a0-0000-7000-8000-000000000000/S3-1/execute/0\r\nContent-Length: {}\r\n\r\n{BODY}",
        worker.address(),
        BODY.len()
    );
    let poll = Poll::new()?;
    let mut streams = Vec::new();
    for _ in 0..connections {
        let mut stream = TcpStream::connect(worker.address())?;
        stream.set_nodelay(true)?;
        stream.write_all(request.as_bytes())?;
        stream.set_nonblocking(true)?;
        poll.add(&stream)?;
        let place = stream.as_raw_fd() as usize;
        if streams.len() <= place {
            streams.resize_with(place + 1, || None);
        }
        streams[place] = Some((stream, Vec::new()));
    }
    let (cpu, calls, begun) = (worker.cpu(), worker.calls(), Instant::now());
    let mut ready = Ready::new();
    let mut answers = 0_u64;
    let mut piece = [0; 4096];
    while begun.elapsed() < length {
        poll.wait(&mut ready, Some(length))?;
        for descriptor in ready.iter() {
            let Some((stream, inbox)) = streams.get_mut(descriptor as usize).and_then(Option::as_mut) else { continue };
            match stream.read(&mut piece) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(count) => inbox.extend_from_slice(&piece[..count]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => continue,
                Err(error) => return Err(error),
            }
            if let Some(message) = http::parse(inbox).map_err(std::io::Error::other)? {
                inbox.drain(..message.body.1);
                answers += 1;
                // Smaller than any socket's buffer, which is empty: the worker has read the one before.
                stream.write_all(request.as_bytes())?;
            }
        }
    }
    let seconds = begun.elapsed().as_secs_f64();
    let asked = (worker.calls() - calls).max(1) as f64;
    Ok(Ceiling {
        connections,
        requests_per_second: answers as f64 / seconds,
        cpu: (worker.cpu() - cpu) / asked * 1000.0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loop_goes_round() {
        let worker = Worker::start(1, |request, reply| reply.push(request.target()));
        let ceiling = measure(&worker, 3, Duration::from_millis(100)).expect("a worker that answers");
        assert!(ceiling.requests_per_second > 0.0);
        assert!(worker.calls() > 3, "each connection asks again when it is answered");
        assert_eq!(worker.complaints(), Vec::<String>::new());
    }
}
