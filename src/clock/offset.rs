//! Reads `xdb.now`: how far the clock of processes is from the real one.

const SECOND: i64 = 1_000_000;
const DAY: i64 = 86_400 * SECOND;
/// Far beyond any test, and far from where timestamps end.
const LONGEST: i64 = 36_500 * DAY;
/// More digits than any accepted number has; keeps the arithmetic from overflowing.
const MOST_DIGITS: usize = 15;

/// The offset in microseconds. Empty is none; otherwise parts such as `3 days`, `-1.5 h` or `02:30:00`, each with a sign
/// of its own, are summed up. What has no fixed length is refused, and so is a point in time: each session would
/// reach it at another moment.
pub fn parse_offset(text: &str) -> Result<i64, String> {
    let mut rest = text.trim();
    let mut sum: i64 = 0;
    while !rest.is_empty() {
        let (part, after) = take_part(rest)?;
        sum = sum.saturating_add(part);
        rest = after.trim_start();
    }
    if sum.saturating_abs() > LONGEST {
        return Err(format!("it is more than {} days", LONGEST / DAY));
    }
    Ok(sum)
}

fn take_part(text: &str) -> Result<(i64, &str), String> {
    let (sign, unsigned) = match text.strip_prefix('-') {
        Some(rest) => (-1, rest.trim_start()),
        None => (1, text.strip_prefix('+').unwrap_or(text).trim_start()),
    };
    let (number, rest) = Number::take(unsigned)?;
    let (micros, rest) = match rest.chars().next() {
        Some(':') => take_clock(&number, &rest[1..])?,
        Some('-' | '/') => {
            return Err("a point in time can't be given, only the distance from the real time".to_owned());
        }
        _ => {
            let rest = rest.trim_start();
            let end = rest.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(rest.len());
            (number.times(unit(&rest[..end])?), &rest[end..])
        }
    };
    Ok((sign * micros, rest))
}

/// `MM` or `MM:SS`, after the hours and a colon.
fn take_clock<'a>(hours: &Number, text: &'a str) -> Result<(i64, &'a str), String> {
    let (minutes, rest) = Number::take(text)?;
    let (seconds, rest) = match rest.strip_prefix(':') {
        Some(rest) => Number::take(rest)?,
        None => (Number::ZERO, rest),
    };
    if !hours.is_whole() || !minutes.is_whole() || minutes.whole > 59 || seconds.whole > 59 {
        return Err("a time is written as in 02:30 or 02:30:59.5".to_owned());
    }
    let parts = [hours.times(3600 * SECOND), minutes.times(60 * SECOND), seconds.times(SECOND)];
    Ok((parts.into_iter().fold(0, i64::saturating_add), rest))
}

/// A decimal number without a sign, exactly.
struct Number {
    whole: i64,
    /// What is after the point, in parts of `scale`.
    fraction: i64,
    scale: i64,
}

impl Number {
    const ZERO: Self = Self { whole: 0, fraction: 0, scale: 1 };

    fn take(text: &str) -> Result<(Self, &str), String> {
        let (whole, rest) = take_digits(text);
        let (fraction, rest) = match rest.strip_prefix('.') {
            Some(rest) => take_digits(rest),
            None => ("", rest),
        };
        if whole.is_empty() && fraction.is_empty() {
            return Err(format!("there is no number at \"{}\"", text.chars().take(20).collect::<String>()));
        }
        if whole.len() > MOST_DIGITS || fraction.len() > MOST_DIGITS {
            return Err(format!("a number has more than {MOST_DIGITS} digits"));
        }
        // Digits alone, and few enough: an empty string is all that can't be read.
        let value = |digits: &str| digits.parse::<i64>().unwrap_or(0);
        let scale = 10_i64.pow(fraction.len() as u32);
        Ok((Self { whole: value(whole), fraction: value(fraction), scale }, rest))
    }

    fn is_whole(&self) -> bool {
        self.scale == 1
    }

    /// So many of a unit of microseconds, without what is smaller than one.
    fn times(&self, unit: i64) -> i64 {
        let [whole, fraction, scale, unit] = [self.whole, self.fraction, self.scale, unit].map(i128::from);
        i64::try_from(whole * unit + fraction * unit / scale).unwrap_or(i64::MAX)
    }
}

fn take_digits(text: &str) -> (&str, &str) {
    text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()))
}

/// Microseconds of a unit.
fn unit(name: &str) -> Result<i64, String> {
    match name.to_ascii_lowercase().as_str() {
        "us" | "microsecond" | "microseconds" => Ok(1),
        "ms" | "msec" | "msecs" | "millisecond" | "milliseconds" => Ok(1000),
        "s" | "sec" | "secs" | "second" | "seconds" => Ok(SECOND),
        "m" | "min" | "mins" | "minute" | "minutes" => Ok(60 * SECOND),
        "h" | "hr" | "hrs" | "hour" | "hours" => Ok(3600 * SECOND),
        "d" | "day" | "days" => Ok(DAY),
        "w" | "week" | "weeks" => Ok(7 * DAY),
        "mon" | "mons" | "month" | "months" | "y" | "yr" | "yrs" | "year" | "years" => {
            Err(format!("\"{name}\" has no fixed length: say it in days"))
        }
        "" => Err("a number has no unit".to_owned()),
        _ => Err(format!("\"{name}\" is no unit of time")),
    }
}
