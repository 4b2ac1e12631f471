//! The loop of the reactor: processes events, ends what is due, begins new calls.

use std::collections::{BTreeSet, HashSet, VecDeque};
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use mio::{Events, Poll, Registry};
use slab::Slab;

use super::call::{CallPlace, PendingCall, is_shortage};
use super::connection::{Origin, READS};
use super::exchange::{Answer, Status, encode};
use super::phase::{self, AttemptPhase, LONGEST_CONNECT, Problem, span};
use super::pool::{self, Pool};
use super::{Done, Job, ReactorShared};
use crate::http::headers::validate_headers;
use crate::http::hosts::{WorkerUrl, read_url};
use crate::http::signature::check_signable;
use crate::http::threads::panic_message;
use crate::http::{HEADER_LIMIT, HttpFailure};
use crate::transport::{CallOutcome, FailureKind};

const EVENTS: usize = 1024;
/// Bytes read at once. All connections share the buffer.
const READ: usize = 64 * 1024;
/// Pause before new connections after a shortage of resources on this machine.
const AFTER_SHORTAGE: Duration = Duration::from_millis(50);

/// Shortest time to connect to one address, even if less time is left.
const SHORTEST_CONNECT: Duration = Duration::from_millis(10);
/// How many addresses of a name are tried.
const MOST_ADDRESSES: usize = 16;

/// The state of the thread, until the thread ends or panics. Used by the reactor's thread only.
pub struct ReactorRound<'a> {
    shared: &'a ReactorShared,
    poll: &'a mut Poll,
    done: &'a mut Vec<Done>,
    now: Instant,
    calls: Slab<PendingCall>,
    connections: Pool<'a>,
    timers: BTreeSet<(Instant, usize)>,
    /// Calls that wait in line, by index and id. Some of them may have ended.
    line: VecDeque<(usize, u64)>,
    /// Calls that wait for a name, by index and id.
    resolving: Vec<(usize, u64)>,
    /// How many calls are resolving. Each of them will need a descriptor.
    reserved: usize,
    /// Connections with more data than one turn allowed to read.
    again: Vec<usize>,
    /// No connection is begun before this time, after a shortage.
    blocked_until: Option<Instant>,
    input: Box<[u8]>,
    space: Box<[u8]>,
}

impl<'a> ReactorRound<'a> {
    /// Acquires no scarce resource, because after a panic it could not be acquired again.
    pub fn new(shared: &'a ReactorShared, poll: &'a mut Poll, registry: &'a Registry, done: &'a mut Vec<Done>) -> Self {
        ReactorRound {
            shared,
            poll,
            done,
            now: Instant::now(),
            calls: Slab::new(),
            connections: Pool::new(registry),
            timers: BTreeSet::new(),
            line: VecDeque::new(),
            resolving: Vec::new(),
            reserved: 0,
            again: Vec::new(),
            blocked_until: None,
            input: vec![0; READ].into(),
            space: vec![0; READ.max(HEADER_LIMIT)].into(),
        }
    }

    /// Runs until the reactor is dropped. Error: polling itself failed.
    pub fn run(&mut self) -> io::Result<()> {
        let mut events = Events::with_capacity(EVENTS);
        loop {
            let timeout = self.idle_for();
            match self.poll.poll(&mut events, timeout) {
                Err(error) if error.kind() != ErrorKind::Interrupted => return Err(error),
                _ => self.now = Instant::now(),
            }
            let Some((submitted, cancelled)) = self.shared.take_submitted() else { return Ok(()) };
            for index in std::mem::take(&mut self.again) {
                self.drive(index);
            }
            for event in &events {
                let Some(index) = pool::index(event.token()) else { continue };
                if let Some(connection) = self.connections.get(index) {
                    connection.hung_up |= event.is_read_closed() || event.is_error();
                    connection.readable |= event.is_readable() || connection.hung_up;
                    self.drive(index);
                }
            }
            for job in submitted {
                self.take_up(job);
            }
            self.cancel(&cancelled);
            if self.shared.arrived.swap(false, Ordering::AcqRel) {
                self.addresses_arrived();
            }
            self.fire_timers();
            self.connections.close_expired(self.now);
            let most = self.shared.max_connections.load(Ordering::Acquire);
            while self.connections.len() + self.reserved > most && self.connections.close_oldest_idle() {}
            self.serve_line(most);
            self.shared.open.store(self.connections.len() + self.reserved, Ordering::Release);
            self.shared.waiting.store(self.line.len(), Ordering::Release);
            self.shared.deliver(self.done);
        }
    }

    /// How long the loop may sleep. None: until an event.
    fn idle_for(&mut self) -> Option<Duration> {
        if !self.again.is_empty() {
            return Some(Duration::ZERO);
        }
        let timer = self.timers.first().map(|(at, _)| *at);
        let retry = self.blocked_until.filter(|_| !self.line.is_empty());
        let next = [timer, self.connections.next_expiry(), retry].into_iter().flatten().min()?;
        Some(next.saturating_duration_since(Instant::now()))
    }

    /// Works on one call. If that panics, only this call ends, with its connection.
    fn guarded(&mut self, index: usize, body: impl FnOnce(&mut Self) -> Result<(), Problem>) {
        match catch_unwind(AssertUnwindSafe(|| body(self))) {
            Ok(Ok(())) => {}
            Ok(Err(problem)) => self.failed(index, problem),
            Err(panic) => {
                let message = format!("the code that makes calls panicked: {}", panic_message(panic.as_ref()));
                self.end(index, HttpFailure::new(FailureKind::Panic, message).into());
            }
        }
    }

    /// Accepts a new call.
    fn take_up(&mut self, Job { id, request, deadline }: Job) {
        let sendable = validate_headers(&request.headers).and_then(|()| check_signable(&request));
        let checked = read_url(&request.url).and_then(|url| sendable.map(|()| url));
        let invalid = |message| HttpFailure::new(FailureKind::Invalid, message);
        let late = || {
            let message = format!("timed out after {} before it was sent", span(request.timeout));
            HttpFailure::new(FailureKind::Timeout, message)
        };
        let url = checked.map_err(invalid).and_then(|url| if deadline > self.now { Ok(url) } else { Err(late()) });
        let trusts = |url: WorkerUrl| if url.https { self.shared.client().map(|_| url) } else { Ok(url) };
        let url = match url.and_then(trusts) {
            Ok(url) => url,
            Err(failure) => {
                self.done.push(Done { id, outcome: failure.into(), elapsed: Duration::ZERO });
                return;
            }
        };
        let origin = Rc::new(Origin { trust: self.trust(&url), host: url.host.clone(), port: url.port });
        let index = self.calls.insert(PendingCall {
            id,
            request,
            url,
            origin,
            deadline,
            timer: deadline,
            started: None,
            needs_new: false,
            place: CallPlace::InLine { tried: None },
        });
        self.timers.insert((deadline, index));
        self.line.push_back((index, id));
    }

    /// Cancels calls.
    fn cancel(&mut self, tags: &[u64]) {
        if tags.is_empty() {
            return;
        }
        let tags: HashSet<_> = tags.iter().collect();
        let is_cancelled = |(_, call): &(usize, &PendingCall)| tags.contains(&call.request.tag);
        let cancelled: Vec<_> = self.calls.iter().filter(is_cancelled).map(|(index, _)| index).collect();
        for index in cancelled {
            self.end(index, HttpFailure::new(FailureKind::Cancelled, "the call is no longer needed").into());
        }
    }

    /// The number of the TLS trust for this URL; None without TLS.
    fn trust(&self, url: &WorkerUrl) -> Option<u64> {
        url.https.then(|| self.shared.trust().number)
    }

    /// Begins calls from the line, in order of arrival, while connections are allowed.
    fn serve_line(&mut self, most: usize) {
        if self.blocked_until.is_some_and(|until| self.now < until) {
            return;
        }
        self.blocked_until = None;
        while let Some((index, id)) = self.line.front().copied() {
            let is_here = |call: &PendingCall| call.id == id && matches!(call.place, CallPlace::InLine { .. });
            if self.calls.get(index).is_some_and(is_here) {
                let idle = self.take_idle(index);
                if idle.is_none() && !self.has_place(most) {
                    return;
                }
                self.line.pop_front();
                self.guarded(index, |round| round.begin(index, idle));
                if self.blocked_until.is_some() {
                    return;
                }
            } else {
                self.line.pop_front();
            }
        }
    }

    /// Whether another connection is allowed. Closes idle connections if necessary.
    fn has_place(&mut self, most: usize) -> bool {
        while self.connections.len() + self.reserved >= most {
            if !self.connections.close_oldest_idle() {
                return false;
            }
        }
        true
    }

    /// An idle connection for the call.
    fn take_idle(&mut self, index: usize) -> Option<usize> {
        let trust = self.trust(&self.calls.get(index)?.url);
        let call = self.calls.get_mut(index)?;
        if call.origin.trust != trust {
            call.origin = Rc::new(Origin { trust, ..Origin::clone(&call.origin) });
        }
        if call.needs_new {
            return None;
        }
        self.connections.take_idle(&call.origin, &self.shared.names, self.now, &mut self.input)
    }

    /// Moves a call out of the line: to an idle connection, or to a new one.
    fn begin(&mut self, index: usize, idle: Option<usize>) -> Result<(), Problem> {
        let Some(call) = self.calls.get_mut(index) else { return Ok(()) };
        call.started.get_or_insert(self.now);
        let Some(connection) = idle else { return self.resolve(index) };
        // From here on, the connection ends with its call, like a new connection.
        call.place = CallPlace::Handshaking { connection };
        if let Some(taken) = self.connections.get(connection) {
            taken.call = Some(index);
        }
        self.exchange(index, connection, false)
    }

    fn resolve(&mut self, index: usize) -> Result<(), Problem> {
        let Some(call) = self.calls.get_mut(index) else { return Ok(()) };
        match self.shared.names.resolve(&call.origin.host, call.origin.port) {
            None => {
                call.place = CallPlace::Resolving;
                self.reserved += 1;
                self.resolving.push((index, call.id));
                Ok(())
            }
            Some(Ok(addresses)) => {
                let port = call.url.port;
                let addresses = addresses.into_iter().take(MOST_ADDRESSES).map(|ip| SocketAddr::new(ip, port));
                self.connect(index, addresses.collect(), self.now + LONGEST_CONNECT, None)
            }
            Some(Err(failure)) if failure.kind == FailureKind::NotTried => {
                self.back_to_line(index, None);
                Ok(())
            }
            Some(Err(failure)) => Err(Problem::Known(failure)),
        }
    }

    /// After a shortage on this machine, the call waits in line until the shortage has passed.
    fn back_to_line(&mut self, index: usize, tried: Option<AttemptPhase>) {
        let Some(call) = self.calls.get_mut(index) else { return };
        call.place = CallPlace::InLine { tried };
        self.line.push_front((index, call.id));
        self.blocked_until = Some(self.now + AFTER_SHORTAGE);
        self.set_timer(index, None);
    }

    /// Names were resolved: the waiting calls ask again.
    fn addresses_arrived(&mut self) {
        for (index, id) in std::mem::take(&mut self.resolving) {
            let is_here = |call: &&mut PendingCall| call.id == id && matches!(call.place, CallPlace::Resolving);
            if let Some(call) = self.calls.get_mut(index).filter(is_here) {
                call.place = CallPlace::InLine { tried: None };
                self.reserved -= 1;
                self.guarded(index, |round| round.resolve(index));
            }
        }
    }

    /// Tries the addresses in turn. Each gets an equal share of the remaining time.
    fn connect(
        &mut self,
        index: usize,
        mut rest: VecDeque<SocketAddr>,
        until: Instant,
        mut last: Option<Problem>,
    ) -> Result<(), Problem> {
        let Some(call) = self.calls.get(index) else { return Ok(()) };
        let until = until.min(call.deadline);
        let (origin, target) = (call.origin.clone(), |peer| phase::target(&call.url, peer));
        while let Some(address) = rest.pop_front() {
            // The policy may have changed since the name was resolved.
            if let Err(message) = self.shared.names.check(&origin.host, address) {
                last = Some(Problem::Known(HttpFailure::new(FailureKind::Refused, message)));
                continue;
            }
            let share = until.saturating_duration_since(self.now) / (rest.len() + 1) as u32;
            if share.is_zero() {
                let timed_out =
                    phase::timed_out(AttemptPhase::Connecting, &target(Some(address)), call.request.timeout);
                return Err(Problem::Known(timed_out));
            }
            let begun = (self.shared.dial)(address).and_then(|stream| {
                stream.set_nodelay(true)?;
                self.connections.add(stream, origin.clone(), address, index)
            });
            match begun {
                Ok(connection) => {
                    let share = self.now + share.max(SHORTEST_CONNECT);
                    if let Some(call) = self.calls.get_mut(index) {
                        call.place = CallPlace::Connecting { connection, rest, until };
                    }
                    self.set_timer(index, Some(share));
                    return Ok(());
                }
                Err(error) if is_shortage(&error) || self.is_out_of_ports(&error, address) => {
                    self.back_to_line(index, last.map(|_| AttemptPhase::Connecting));
                    return Ok(());
                }
                Err(error) => {
                    let failure = phase::not_connected(&target(Some(address)), &phase::reason(&error));
                    last = Some(Problem::Known(failure));
                }
            }
        }
        let nothing = || Problem::Known(phase::not_connected(&target(None), "it has no address"));
        Err(last.unwrap_or_else(nothing))
    }

    /// `AddrNotAvailable` can mean a wrong address or no free local port. If a connection to the address exists, the
    /// ports have run out.
    fn is_out_of_ports(&self, error: &io::Error, address: SocketAddr) -> bool {
        error.kind() == ErrorKind::AddrNotAvailable && self.connections.leads_to(address)
    }

    /// An address did not accept the connection: tries the next one.
    fn connect_further(&mut self, index: usize, failure: HttpFailure) -> Result<(), Problem> {
        let Some(call) = self.calls.get_mut(index) else { return Ok(()) };
        let CallPlace::Connecting { connection, rest, until } = &mut call.place else { return Ok(()) };
        let (connection, rest, until) = (*connection, std::mem::take(rest), *until);
        self.connections.close(connection);
        self.connect(index, rest, until, Some(Problem::Known(failure)))
    }

    /// Handles an event of a connection, or continues reading.
    fn drive(&mut self, connection: usize) {
        let Some(known) = self.connections.get(connection) else { return };
        match known.call {
            Some(call) => self.guarded(call, |round| round.go_on(call)),
            // An idle connection may get messages of TLS itself. Anything else closes it.
            None => {
                if !known.is_quiet(&mut self.input) {
                    self.connections.close(connection);
                }
            }
        }
    }

    fn go_on(&mut self, index: usize) -> Result<(), Problem> {
        let Some(call) = self.calls.get(index) else { return Ok(()) };
        match &call.place {
            CallPlace::Connecting { connection, .. } => self.go_on_connecting(index, *connection),
            CallPlace::Handshaking { connection } => self.go_on_shaking_hands(index, *connection),
            CallPlace::Exchanging { .. } => self.go_on_exchanging(index),
            CallPlace::InLine { .. } | CallPlace::Resolving => Ok(()),
        }
    }

    fn go_on_connecting(&mut self, index: usize, connection: usize) -> Result<(), Problem> {
        let (Some(call), Some(connected)) = (self.calls.get_mut(index), self.connections.get(connection)) else {
            return Ok(());
        };
        match connected.is_connected() {
            Ok(false) => return Ok(()),
            Ok(true) => {}
            Err(error) => {
                let target = phase::target(&call.url, Some(connected.peer));
                return self.connect_further(index, phase::not_connected(&target, &phase::reason(&error)));
            }
        }
        if call.url.https {
            call.place = CallPlace::Handshaking { connection };
            connected.begin_tls(self.shared.client().map_err(Problem::Known)?)?;
            self.set_timer(index, None);
            return self.go_on_shaking_hands(index, connection);
        }
        self.exchange(index, connection, true)
    }

    fn go_on_shaking_hands(&mut self, index: usize, connection: usize) -> Result<(), Problem> {
        let Some(connected) = self.connections.get(connection) else { return Ok(()) };
        match connected.handshake() {
            Ok(()) => self.exchange(index, connection, true),
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// The connection is established: sends the request.
    fn exchange(&mut self, index: usize, connection: usize, fresh: bool) -> Result<(), Problem> {
        let Some(call) = self.calls.get_mut(index) else { return Ok(()) };
        let encoded = encode(&call.request, &call.url, &mut self.space[..HEADER_LIMIT]);
        let (head, exchange) = encoded.map_err(Problem::Known)?;
        let phase = AttemptPhase::Sending;
        call.place = CallPlace::Exchanging { connection, fresh, phase, head, sent: 0, exchange: Box::new(exchange) };
        self.set_timer(index, None);
        self.go_on_exchanging(index)
    }

    /// Sends the rest of the request, and reads: a worker may answer before it has read the whole request.
    fn go_on_exchanging(&mut self, index: usize) -> Result<(), Problem> {
        match self.send(index) {
            Ok(()) => self.receive(index, None),
            // The peer accepts no more data. What it sent before is read first.
            Err(error) if phase::is_lost(&error) => self.receive(index, Some(error)),
            Err(error) => Err(error.into()),
        }
    }

    fn send(&mut self, index: usize) -> io::Result<()> {
        let Some(PendingCall { place, request, .. }) = self.calls.get_mut(index) else { return Ok(()) };
        let CallPlace::Exchanging { connection, fresh, phase, head, sent, .. } = place else { return Ok(()) };
        let Some(connected) = self.connections.get(*connection).filter(|_| !head.is_empty()) else { return Ok(()) };
        let body = &request.body;
        while *sent < head.len() + body.len() {
            let first = head.get(*sent..).unwrap_or_default();
            let second = &body[sent.saturating_sub(head.len())..];
            match connected.write(first, second) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(written) => *sent += written,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        match connected.flush() {
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
            flushed => flushed?,
        }
        if *phase == AttemptPhase::Sending {
            *phase = AttemptPhase::Waiting;
        }
        *head = Vec::new();
        if *fresh {
            // The body is never sent again.
            request.body = Vec::new();
        }
        Ok(())
    }

    /// Reads what has arrived. `broken` is why nothing more can be sent. The error may be the only sign of a reset, so
    /// an end does not count as orderly then.
    fn receive(&mut self, index: usize, mut broken: Option<io::Error>) -> Result<(), Problem> {
        let limit = self.shared.max_response_bytes.load(Ordering::Relaxed);
        let Some(call) = self.calls.get_mut(index) else { return Ok(()) };
        let CallPlace::Exchanging { connection, phase, head, exchange, .. } = &mut call.place else { return Ok(()) };
        let Some(connected) = self.connections.get(*connection) else { return Ok(()) };
        for _ in 0..READS {
            // The event for data that arrived during sending was seen before, so the stored flag decides.
            if !connected.readable && broken.is_none() {
                return Ok(());
            }
            let answer = match connected.read(&mut self.input) {
                Ok(0) => match broken.take() {
                    None => Some(exchange.end()),
                    Some(broken) => return Err(broken.into()),
                },
                Ok(amount) => {
                    *phase = AttemptPhase::Receiving;
                    exchange.receive(&self.input[..amount], limit, &mut self.space).transpose()
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => None,
                Err(error) => match broken.take() {
                    None if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                    broken => return Err(broken.unwrap_or(error).into()),
                },
            };
            if let Some(answer) = answer {
                let Answer { status, body, reusable } = answer?;
                let is_sent = head.is_empty();
                self.answered(index, Answer { status, body, reusable: reusable && is_sent });
                return Ok(());
            }
        }
        self.again.push(*connection);
        Ok(())
    }

    fn answered(&mut self, index: usize, Answer { status, body, reusable }: Answer) {
        if reusable && let Some(connection) = self.calls.get(index).and_then(PendingCall::connection) {
            self.connections.keep(connection, self.now);
        }
        let Status { code: status, retry_after } = status;
        self.end(index, CallOutcome::Answer { status, retry_after, body });
    }

    /// An attempt failed: ends its call, or makes one more attempt.
    fn failed(&mut self, index: usize, problem: Problem) {
        let Some(call) = self.calls.get_mut(index) else { return };
        let connection = call.connection();
        let peer = connection.and_then(|index| self.connections.get(index)).map(|connection| connection.peer);
        let (target, phase) = (phase::target(&call.url, peer), call.phase().unwrap_or(AttemptPhase::Resolving));
        // A server may close a kept connection just when it is used again. If no byte of an answer came, the request is
        // sent once more over a new connection. If the worker did process the request, it recognises the idempotency
        // key.
        if problem.is_lost()
            && phase != AttemptPhase::Receiving
            && matches!(call.place, CallPlace::Exchanging { fresh: false, .. })
        {
            call.needs_new = true;
            call.place = CallPlace::InLine { tried: Some(phase) };
            self.line.push_front((index, call.id));
            connection.into_iter().for_each(|index| self.connections.close(index));
            return;
        }
        let failure = problem.failure(phase, &target, &call.url);
        self.end(index, failure.into());
    }

    /// Ends a call, and closes its connection unless it was kept.
    fn end(&mut self, index: usize, outcome: CallOutcome) {
        let Some(call) = self.calls.try_remove(index) else { return };
        self.timers.remove(&(call.timer, index));
        match call.place {
            CallPlace::Resolving => self.reserved -= 1,
            _ => {
                if let Some(connection) = call.connection()
                    && self.connections.get(connection).is_some_and(|known| known.call == Some(index))
                {
                    self.connections.close(connection);
                }
            }
        }
        let elapsed = call.started.map_or(Duration::ZERO, |started| self.now.saturating_duration_since(started));
        self.done.push(Done { id: call.id, outcome, elapsed });
    }

    /// When the call is checked next: at its deadline, or earlier.
    fn set_timer(&mut self, index: usize, at: Option<Instant>) {
        let Some(call) = self.calls.get_mut(index) else { return };
        let at = at.map_or(call.deadline, |at| at.min(call.deadline));
        if at != call.timer {
            self.timers.remove(&(call.timer, index));
            self.timers.insert((at, index));
            call.timer = at;
        }
    }

    fn fire_timers(&mut self) {
        while let Some((at, index)) = self.timers.first().copied()
            && at <= self.now
        {
            self.guarded(index, |round| round.time_is_up(index));
            // The entry is still first if the call neither ended nor set another timer. Without removal it would fire
            // again at once.
            if self.timers.first() == Some(&(at, index)) {
                self.timers.pop_first();
            }
        }
    }

    fn time_is_up(&mut self, index: usize) -> Result<(), Problem> {
        let Some(call) = self.calls.get(index) else { return Ok(()) };
        let connection = call.connection();
        let peer = connection.and_then(|index| self.connections.get(index)).map(|connection| connection.peer);
        let failure = call.timed_out(peer);
        match &call.place {
            CallPlace::Connecting { until, .. } if self.now < *until => self.connect_further(index, failure),
            _ => Err(Problem::Known(failure)),
        }
    }
}
