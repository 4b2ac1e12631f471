//! Cron expressions, and the moments that they name in a time zone.
//!
//! The fields are those of Vixie cron, and so is what a change of the clock does to them:
//! - A local time that the change leaves out fires at the first moment after it.
//! - A local time that comes twice fires at the first one.
//! - If the field of the hour begins with `*`, the expression follows elapsed time. So it fires in both of two equal
//!   hours, and never for a time that is left out.
//!
//! The crates for cron keep other rules: for them a day `*/2` is restricted, and a clock never leaves a whole day out.
//!
//! Limitations: no seconds, and no extensions such as `L`, `W` and `#`. The caller finds the time zone.

use crate::fields::{cut, quote};
use jiff::civil::{Date, DateTime};
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp as Moment};
use xdb_engine::{Cron, Duration, Timestamp, UnknownName};

/// The first tick after a moment. `zone` finds a time zone by its name.
pub fn next_tick(
    cron: &Cron,
    after: Timestamp,
    zone: impl FnOnce(&str) -> Option<TimeZone>,
) -> Result<Timestamp, UnknownName> {
    let Cron { expression, timezone } = cron;
    let wrong = |at: &str, what: String| UnknownName { at: at.to_owned(), what };
    let zone = match timezone {
        None => TimeZone::UTC,
        Some(name) => {
            zone(name).ok_or_else(|| wrong("timezone", format!("is unknown: {}", quote(cut(name, SHOWN)))))?
        }
    };
    let tick = match Schedule::read(expression).map_err(|what| wrong("cron", what))? {
        Schedule::Every(interval) => Some(after + interval),
        Schedule::Fields(fields) => fields.first_after(after, &zone),
    };
    tick.ok_or_else(|| wrong("cron", format!("is {}: it has no tick until the year 9999", quote(expression))))
}

/// Checks an expression. Error: a predicate.
pub(crate) fn check_cron(expression: &str) -> Result<(), String> {
    Schedule::read(expression).map(drop)
}

/// The most characters of a wrong text that a message shows.
const SHOWN: usize = 100;

enum Schedule {
    Every(Duration),
    Fields(CronFields),
}

/// The numbers that each field allows, as bits.
struct CronFields {
    minutes: u64,
    hours: u64,
    days: u64,
    months: u64,
    weekdays: u64,
    /// Both the day of the month and the weekday must match. Otherwise one of them is enough.
    both_days: bool,
    /// The hour begins with `*`.
    follows_elapsed_time: bool,
}

const MONTHS: [&str; 12] = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];
const WEEKDAYS: [&str; 7] = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"];

impl Schedule {
    fn read(expression: &str) -> Result<Self, String> {
        let wrong = |what: String| format!("is {}: {what}", quote(cut(expression, SHOWN)));
        match expression.trim().strip_prefix("@every ") {
            Some(interval) => every(interval).map(Self::Every).ok_or_else(|| wrong(EVERY.to_owned())),
            None => CronFields::read(expression).map(Self::Fields).map_err(wrong),
        }
    }
}

const EVERY: &str = "@every needs a whole number from 1 to 4294967295, and a unit: seconds, minutes, hours or days";

/// An interval such as `90 seconds`.
fn every(interval: &str) -> Option<Duration> {
    let (number, unit) = interval.trim().split_once(char::is_whitespace)?;
    let number = number.parse::<u32>().ok().filter(|number| *number > 0)?;
    let unit = unit.trim_start();
    let seconds = match unit.strip_suffix('s').unwrap_or(unit) {
        "second" => 1.0,
        "minute" => 60.0,
        "hour" => 3_600.0,
        "day" => 86_400.0,
        _ => return None,
    };
    Some(Duration::from_seconds(f64::from(number) * seconds))
}

impl CronFields {
    fn read(expression: &str) -> Result<Self, String> {
        let expression = match expression.trim() {
            "@hourly" => "0 * * * *",
            "@daily" | "@midnight" => "0 0 * * *",
            "@weekly" => "0 0 * * 0",
            "@monthly" => "0 0 1 * *",
            "@yearly" | "@annually" => "0 0 1 1 *",
            given => given,
        };
        let fields: Vec<&str> = expression.split_ascii_whitespace().take(7).collect();
        let [minute, hour, day, month, weekday] = fields[..] else {
            return Err("it must have five fields: minute, hour, day, month and weekday".to_owned());
        };
        let weekdays = numbers("weekday", weekday, 0..=7, &WEEKDAYS)?;
        let fields = Self {
            minutes: numbers("minute", minute, 0..=59, &[])?,
            hours: numbers("hour", hour, 0..=23, &[])?,
            days: numbers("day", day, 1..=31, &[])?,
            months: numbers("month", month, 1..=12, &MONTHS)?,
            // Sunday is 0 and 7.
            weekdays: weekdays | weekdays >> 7,
            both_days: day.starts_with('*') || weekday.starts_with('*'),
            follows_elapsed_time: hour.starts_with('*'),
        };
        // In 400 years, each date falls on each weekday.
        let month_has_days = |month: i8| {
            let longest = Date::constant(2000, month, 1).days_in_month();
            has(fields.months, month) && (1..=longest).any(|day| has(fields.days, day))
        };
        match !fields.both_days || (1..=12).any(month_has_days) {
            true => Ok(fields),
            false => Err("no month has such a day".to_owned()),
        }
    }

    fn is_day(&self, date: Date) -> bool {
        let (day, weekday) = (has(self.days, date.day()), has(self.weekdays, date.weekday().to_sunday_zero_offset()));
        has(self.months, date.month()) && if self.both_days { day && weekday } else { day || weekday }
    }

    /// The first matching local time in a range.
    fn first_in(&self, from: DateTime, until: DateTime) -> Option<DateTime> {
        let begins_later = from.second() > 0 || from.subsec_nanosecond() > 0;
        let (mut date, mut hour, mut minute) = (from.date(), from.hour(), from.minute() + i8::from(begins_later));
        while date <= until.date() {
            while self.is_day(date) && hour < 24 {
                if has(self.hours, hour)
                    && let Some(minute) = (minute..60).find(|minute| has(self.minutes, *minute))
                {
                    return Some(date.at(hour, minute, 0, 0)).filter(|found| *found < until);
                }
                (hour, minute) = (hour + 1, 0);
            }
            (date, hour, minute) = (date.tomorrow().ok()?, 0, 0);
        }
        None
    }

    /// The first tick after a moment. Between two changes of the clock, a time zone is a fixed offset. None: there is
    /// none until the year 9999.
    fn first_after(&self, after: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
        let local = |at: Moment| zone.to_offset(at).to_datetime(at);
        let mut at = Moment::from_microsecond(after.0).ok()?;
        let instant = SignedDuration::from_nanos(1);
        let behind = at.checked_add(instant).ok()?;
        let mut from = local(behind);
        if !self.follows_elapsed_time
            && let Some(change) = zone.preceding(behind).next()
        {
            // Local times up to the one of the change have come before it.
            let before = change.timestamp().checked_sub(instant).ok()?;
            from = from.max(zone.to_offset(before).to_datetime(change.timestamp()));
        }
        loop {
            let offset = zone.to_offset(at);
            let change = zone.following(at).next().map(|change| change.timestamp());
            let until = change.map_or(DateTime::MAX, |change| offset.to_datetime(change));
            if let Some(tick) = self.first_in(from, until) {
                // A local time that the change has left out is before the change at the new offset.
                let tick = offset.to_timestamp(tick).ok()?.max(at);
                return Some(Timestamp(tick.as_microsecond()));
            }
            at = change?;
            from = if self.follows_elapsed_time { local(at) } else { until };
        }
    }
}

fn has(bits: u64, number: i8) -> bool {
    bits >> number & 1 == 1
}

/// The numbers of a field: a list of numbers, names and ranges, with steps.
fn numbers(field: &str, text: &str, allowed: std::ops::RangeInclusive<u32>, names: &[&str]) -> Result<u64, String> {
    let wrong = || format!("{} is no {field}", quote(cut(text, SHOWN)));
    let (first, last) = (*allowed.start(), *allowed.end());
    let number = |text: &str| {
        let named = names.iter().position(|name| text.eq_ignore_ascii_case(name)).map(|at| at as u32 + first);
        let digits = text.bytes().all(|byte| byte.is_ascii_digit());
        named.or_else(|| text.parse().ok().filter(|_| digits)).filter(|number| allowed.contains(number))
    };
    let item = |item: &str| {
        let (range, step) = match item.split_once('/') {
            Some((range, step)) => (range, Some(step.parse::<u8>().ok().filter(|step| *step > 0)?)),
            None => (item, None),
        };
        let (from, to) = match range.split_once('-') {
            _ if range == "*" => (first, last),
            Some((from, to)) => (number(from)?, number(to)?),
            // As in Vixie cron, a step belongs to a range.
            None if step.is_none() => (number(range)?, number(range)?),
            None => return None,
        };
        let step = usize::from(step.unwrap_or(1));
        (from <= to).then(|| (from..=to).step_by(step).fold(0, |bits, number| bits | 1u64 << number))
    };
    text.split(',').try_fold(0, |bits, part| Some(bits | item(part)?)).ok_or_else(wrong)
}
