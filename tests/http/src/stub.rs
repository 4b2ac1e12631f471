//! Workers that misbehave, on a loopback port of their own.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

/// The longest wait of a stub.
const PATIENCE: Duration = Duration::from_secs(20);

/// A listening stub. Its threads end with their connections.
pub struct Stub {
    /// The address on which the stub listens.
    pub address: SocketAddr,
    accepted: Arc<AtomicUsize>,
}

impl Stub {
    /// Serves every connection by `serve`, which also gets the number of the connection, from 0.
    pub fn start(serve: impl Fn(Connection, usize) + Send + Sync + 'static) -> Self {
        Self::start_on("127.0.0.1", serve)
    }

    /// A stub on another address of this machine.
    pub fn start_on(ip: &str, serve: impl Fn(Connection, usize) + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind((ip, 0)).expect("a free port");
        let address = listener.local_addr().expect("an address");
        let accepted = Arc::new(AtomicUsize::new(0));
        let count = accepted.clone();
        let serve = Arc::new(serve);
        thread::spawn(move || {
            for stream in listener.incoming() {
                let stream = match stream {
                    Ok(stream) => stream,
                    // A test that leaves this process no descriptor keeps its stub.
                    Err(error) if error.raw_os_error() == Some(libc::EMFILE) => {
                        thread::yield_now();
                        continue;
                    }
                    Err(_) => return,
                };
                stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
                stream.set_write_timeout(Some(PATIENCE)).expect("a timeout");
                let number = count.fetch_add(1, Ordering::SeqCst);
                let serve = serve.clone();
                thread::spawn(move || serve(Connection { stream }, number));
            }
        });
        Stub { address, accepted }
    }

    /// Answers every request of every connection with `status` and `body`.
    pub fn answering(status: u16, body: &'static str) -> Self {
        Self::start(move |mut connection, _| {
            while connection.request().is_some() {
                connection.answer(status, body);
            }
        })
    }

    /// The URL of `path` at this stub.
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// How many connections have been accepted.
    pub fn accepted(&self) -> usize {
        self.accepted.load(Ordering::SeqCst)
    }
}

/// A port on which nothing listens. The system never gives it to a program that asks for any port.
pub fn closed_port() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 1))
}

/// An address that accepts no connection, and the objects that keep it so.
pub fn never_accepting() -> (SocketAddr, TcpListener, Vec<TcpStream>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    // SAFETY: the descriptor is open. The backlog of a listening socket may be lowered.
    assert_eq!(unsafe { libc::listen(listener.as_raw_fd(), 0) }, 0);
    let address = listener.local_addr().expect("an address");
    let mut queued = Vec::new();
    while let Ok(stream) = TcpStream::connect_timeout(&address, Duration::from_millis(200)) {
        queued.push(stream);
        assert!(queued.len() < 1000);
    }
    (address, listener, queued)
}

/// A request as it arrived.
pub struct Request {
    /// The request line and the headers.
    pub head: String,
    /// The body, of the length in the Content-Length.
    pub body: Vec<u8>,
}

impl Request {
    /// The next request. None: the other end has closed.
    pub fn read(from: &mut impl Read) -> Option<Self> {
        let mut head = Vec::new();
        let mut byte = [0];
        while !head.ends_with(b"\r\n\r\n") {
            if from.read(&mut byte).ok()? == 0 {
                return None;
            }
            head.push(byte[0]);
        }
        let mut request = Request { head: String::from_utf8(head).ok()?, body: Vec::new() };
        let length = request.header("content-length")?.parse().ok()?;
        request.body.resize(length, 0);
        from.read_exact(&mut request.body).ok()?;
        Some(request)
    }

    /// The value of a header.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| {
            let (key, value) = line.split_once(':')?;
            key.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }
}

/// The stub's end of a connection. Errors because the other end has closed are ignored.
pub struct Connection {
    /// The stream, for anything that the methods don't do.
    pub stream: TcpStream,
}

impl Connection {
    /// The next request. None: the other end has closed.
    pub fn request(&mut self) -> Option<Request> {
        Request::read(&mut self.stream)
    }

    /// Answers, and keeps the connection alive.
    pub fn answer(&mut self, status: u16, body: &str) {
        let length = body.len();
        self.send(&format!("HTTP/1.1 {status} Whatever\r\nContent-Length: {length}\r\n\r\n{body}"));
    }

    /// Sends bytes as they are. False: the other end has closed.
    pub fn send(&mut self, text: &str) -> bool {
        self.stream.write_all(text.as_bytes()).is_ok()
    }

    /// Waits for this time, as a slow worker does. False: the other end has closed meanwhile.
    pub fn dawdle(&mut self, time: Duration) -> bool {
        self.stream.set_read_timeout(Some(time)).expect("a timeout");
        let read = self.stream.read(&mut [0]);
        self.stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        read.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
    }

    /// Waits until the other end closes.
    pub fn hang(&mut self) {
        let mut ignored = [0; 1024];
        while matches!(self.stream.read(&mut ignored), Ok(1..)) {}
    }

    /// Ends the connection by a reset instead of an orderly close.
    pub fn reset(self) {
        let linger = libc::linger { l_onoff: 1, l_linger: 0 };
        // SAFETY: the descriptor is open, and the option has the given size.
        unsafe {
            libc::setsockopt(
                self.stream.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_LINGER,
                (&raw const linger).cast(),
                size_of::<libc::linger>() as libc::socklen_t,
            );
        }
    }
}
