//! The part of HTTP/1.1 that both ends of a keep-alive connection need.

/// A request or an answer that is complete at the start of a buffer.
#[derive(Debug, PartialEq)]
pub struct Message {
    /// The second word of the first line: the path, or the status.
    pub subject: (usize, usize),
    /// The range of the body. The next message begins after it.
    pub body: (usize, usize),
}

/// The most bytes of a head. A longer head is an error, so an endless head is noticed.
const LARGEST_HEAD: usize = 64 * 1024;

/// Parses the message at the start of a buffer. None: it is not complete.
pub fn parse(buffer: &[u8]) -> Result<Option<Message>, String> {
    let Some(end) = find(buffer, b"\r\n\r\n") else {
        if buffer.len() > LARGEST_HEAD {
            return Err("a head without an end".into());
        }
        return Ok(None);
    };
    let head = &buffer[..end];
    let mut lines = head.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii);
    let first = lines.next().unwrap_or_default();
    let begin = first.iter().position(|byte| *byte == b' ').ok_or("a first line without a space")? + 1;
    let length = first[begin..].iter().position(|byte| *byte == b' ').unwrap_or(first.len() - begin);
    let mut body = None;
    for line in lines {
        let Some(colon) = line.iter().position(|byte| *byte == b':') else { continue };
        let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
        if name.eq_ignore_ascii_case(b"content-length") {
            let text = std::str::from_utf8(value).map_err(|_| "a length that is no text")?;
            body = Some(text.parse::<usize>().map_err(|_| format!("content-length: {text}"))?);
        } else if name.eq_ignore_ascii_case(b"transfer-encoding") {
            return Err("a body in chunks".into());
        }
    }
    let body = body.ok_or("no content-length")?;
    let start = end + 4;
    if buffer.len() < start + body {
        return Ok(None);
    }
    Ok(Some(Message { subject: (begin, begin + length), body: (start, start + body) }))
}

/// The position of the first occurrence of `needle`.
pub fn find(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    let first = *needle.first()?;
    let mut from = 0;
    while let Some(step) = haystack[from..].iter().position(|byte| *byte == first) {
        if haystack[from + step..].starts_with(needle) {
            return Some(from + step);
        }
        from += step + 1;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const REQUEST: &[u8] = b"POST /a/b HTTP/1.1\r\nHost: x\r\ncontent-LENGTH: 3\r\n\r\nabcPOST";

    #[test]
    fn a_message_ends_after_its_content_length() {
        let message = parse(REQUEST).expect("good HTTP").expect("complete");
        assert_eq!(&REQUEST[message.subject.0..message.subject.1], b"/a/b");
        assert_eq!(&REQUEST[message.body.0..message.body.1], b"abc");
    }

    #[test]
    fn a_part_of_a_message_is_none() {
        let whole = REQUEST.len() - 4;
        assert!((0..whole).all(|end| parse(&REQUEST[..end]) == Ok(None)));
        assert!(parse(&REQUEST[..whole]).expect("good HTTP").is_some());
    }

    #[test]
    fn an_answer_is_a_message_too() {
        let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
        let message = parse(answer).expect("good HTTP").expect("complete");
        assert_eq!(&answer[message.subject.0..message.subject.1], b"200");
    }

    #[test]
    fn a_message_without_a_length_is_refused() {
        assert!(parse(b"POST / HTTP/1.1\r\n\r\n").is_err());
        assert!(parse(b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n").is_err());
        assert!(parse(b"POST / HTTP/1.1\r\nContent-Length: x\r\n\r\n").is_err());
        assert!(parse(&vec![b'x'; LARGEST_HEAD + 1]).is_err());
    }

    #[test]
    fn a_needle_may_begin_twice() {
        assert_eq!(find(b"aab", b"ab"), Some(1));
        assert_eq!(find(b"aab", b"ac"), None);
        assert_eq!(find(b"", b"a"), None);
    }
}
