//! Cron expressions: their next tick, also across changes of the clock, and what is wrong with them.

use jiff::Timestamp as Moment;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use proptest::prelude::*;
use xdb_engine::{Cron, Timestamp, UnknownName};
use xdb_protocol::next_tick;

/// The zone of Berlin by its rules: no file is needed.
fn berlin() -> TimeZone {
    TimeZone::posix("CET-1CEST,M3.5.0,M10.5.0/3").unwrap()
}

/// Half an hour of summer time.
fn lord_howe() -> TimeZone {
    TimeZone::posix("<+1030>-10:30<+11>-11,M10.1.0,M4.1.0").unwrap()
}

fn zone(name: &str) -> Option<TimeZone> {
    match name {
        "Berlin" => Some(berlin()),
        "Lord Howe" => Some(lord_howe()),
        "New York" => TimeZone::posix("EST5EDT,M3.2.0,M11.1.0").ok(),
        _ => None,
    }
}

fn tick(expression: &str, timezone: Option<&str>, after: Timestamp) -> Result<Timestamp, String> {
    let cron = Cron { expression: expression.to_owned(), timezone: timezone.map(str::to_owned) };
    next_tick(&cron, after, zone).map_err(|UnknownName { at, what }| format!("{at} {what}"))
}

fn at(moment: &str) -> Timestamp {
    Timestamp(moment.parse::<Moment>().unwrap().as_microsecond())
}

/// The first ticks after a moment, in UTC.
fn ticks(expression: &str, timezone: &str, after: &str, count: usize) -> Vec<String> {
    let next = |after: &Timestamp| tick(expression, Some(timezone).filter(|name| *name != "UTC"), *after).ok();
    let first = next(&at(after));
    let shown = |tick: Timestamp| Moment::from_microsecond(tick.0).unwrap().strftime("%m-%d %H:%M").to_string();
    std::iter::successors(first, next).take(count).map(shown).collect()
}

#[test]
fn fields_are_lists_ranges_steps_and_names() {
    let one = |expression: &str| ticks(expression, "UTC", "2026-01-31T12:00:30Z", 3);
    assert_eq!(one("* * * * *"), ["01-31 12:01", "01-31 12:02", "01-31 12:03"]);
    assert_eq!(one("0 3 * * mon-fri"), ["02-02 03:00", "02-03 03:00", "02-04 03:00"]);
    assert_eq!(one("5,50-52 */11 * * *"), ["01-31 22:05", "01-31 22:50", "01-31 22:51"]);
    assert_eq!(one("0 0 10-20/5 FEB,dec *"), ["02-10 00:00", "02-15 00:00", "02-20 00:00"]);
    assert_eq!(one("0 0 * * 7"), one("0 0 * * 0"));
    assert_eq!(one("0 0 29 2 *"), ["02-29 00:00", "02-29 00:00", "02-29 00:00"]);
    for (word, fields) in [("@hourly", "0 * * * *"), ("@daily", "0 0 * * *"), ("@weekly", "0 0 * * sun")] {
        assert_eq!(one(word), one(fields));
    }
    assert_eq!(one("@monthly"), ["02-01 00:00", "03-01 00:00", "04-01 00:00"]);
    assert_eq!(one("@yearly"), ["01-01 00:00", "01-01 00:00", "01-01 00:00"]);
    assert_eq!(one("@annually"), one("@yearly"));
    assert_eq!(one("@midnight"), one("@daily"));
}

#[test]
fn day_of_month_and_weekday_are_those_of_vixie_cron() {
    let one = |expression: &str| ticks(expression, "UTC", "2026-01-01T00:00:00Z", 4);
    // One of two restricted fields is enough.
    assert_eq!(one("0 0 13 * fri"), ["01-02 00:00", "01-09 00:00", "01-13 00:00", "01-16 00:00"]);
    // A field that begins with `*` is not restricted, also with a step.
    assert_eq!(one("0 0 */10 * thu"), ["05-21 00:00", "06-11 00:00", "10-01 00:00", "12-31 00:00"]);
}

#[test]
fn a_local_time_that_is_left_out_fires_at_the_first_moment_after() {
    // 02:00 to 03:00 is left out on 29 March 2026.
    let at_night = ticks("30 2 * * *", "Berlin", "2026-03-27T12:00:00Z", 3);
    assert_eq!(at_night, ["03-28 01:30", "03-29 01:00", "03-30 00:30"]);
    assert_eq!(ticks("0,30 2 * * *", "Berlin", "2026-03-28T12:00:00Z", 2), ["03-29 01:00", "03-30 00:00"]);
    assert_eq!(ticks("0 2,3 * * *", "Berlin", "2026-03-28T12:00:00Z", 2), ["03-29 01:00", "03-30 00:00"]);
    // Half an hour is left out on 4 October 2026.
    assert_eq!(ticks("10 2 * * *", "Lord Howe", "2026-10-03T00:00:00Z", 2), ["10-03 15:30", "10-04 15:10"]);
}

#[test]
fn a_local_time_that_comes_twice_fires_at_the_first() {
    // 02:00 to 03:00 comes twice on 25 October 2026.
    let at_night = ticks("30 2 * * *", "Berlin", "2026-10-24T12:00:00Z", 2);
    assert_eq!(at_night, ["10-25 00:30", "10-26 01:30"]);
    // A wait that begins in the second of the two hours.
    assert_eq!(ticks("30 2 * * *", "Berlin", "2026-10-25T01:10:00Z", 1), ["10-26 01:30"]);
    assert_eq!(ticks("0 2-4 * * *", "Berlin", "2026-10-25T00:00:00Z", 2), ["10-25 02:00", "10-25 03:00"]);
}

#[test]
fn an_hour_with_a_star_follows_elapsed_time() {
    assert_eq!(
        ticks("*/30 * * * *", "Berlin", "2026-10-24T23:45:00Z", 5),
        ["10-25 00:00", "10-25 00:30", "10-25 01:00", "10-25 01:30", "10-25 02:00"]
    );
    assert_eq!(ticks("30 * * * *", "Berlin", "2026-03-29T00:00:00Z", 2), ["03-29 00:30", "03-29 01:30"]);
    // 02:00 is left out on this day, and comes twice on the other.
    assert_eq!(ticks("0 */2 * * *", "Berlin", "2026-03-28T23:30:00Z", 2), ["03-29 02:00", "03-29 04:00"]);
    assert_eq!(
        ticks("0 */2 * * *", "Berlin", "2026-10-24T23:30:00Z", 3),
        ["10-25 00:00", "10-25 01:00", "10-25 03:00"]
    );
}

#[test]
fn every_counts_from_the_begin_of_the_wait() {
    let after = at("2026-03-01T00:00:00.25Z");
    for (interval, seconds) in [("90 seconds", 90), ("1 minute", 60), ("2  hours", 7200), ("1 day", 86_400)] {
        let ticked = tick(&format!("@every {interval}"), Some("Berlin"), after);
        assert_eq!(ticked, Ok(Timestamp(after.0 + seconds * 1_000_000)), "{interval}");
    }
}

#[test]
fn what_is_wrong_is_said() {
    let wrong = |expression: &str| tick(expression, None, Timestamp(0)).unwrap_err();
    let fields = "it must have five fields: minute, hour, day, month and weekday";
    assert_eq!(wrong("* * * * * *"), format!("cron is \"* * * * * *\": {fields}"));
    assert_eq!(wrong("* * * *"), format!("cron is \"* * * *\": {fields}"));
    assert_eq!(wrong(""), format!("cron is \"\": {fields}"));
    assert_eq!(wrong("@fortnightly"), format!("cron is \"@fortnightly\": {fields}"));
    assert_eq!(wrong("0 0 31 2 *"), "cron is \"0 0 31 2 *\": no month has such a day");
    assert_eq!(wrong("0 0 31 feb-apr/2 *"), "cron is \"0 0 31 feb-apr/2 *\": no month has such a day");
    for (expression, what) in [
        ("60 * * * *", "\"60\" is no minute"),
        ("* 24 * * *", "\"24\" is no hour"),
        ("* * 0 * *", "\"0\" is no day"),
        ("* * * 13 *", "\"13\" is no month"),
        ("* * * * 8", "\"8\" is no weekday"),
        ("* * * * fri-mon", "\"fri-mon\" is no weekday"),
        ("*/0 * * * *", "\"*/0\" is no minute"),
        ("5/10 * * * *", "\"5/10\" is no minute"),
        ("+5 * * * *", "\"+5\" is no minute"),
        ("1, * * * *", "\"1,\" is no minute"),
        ("* * L * *", "\"L\" is no day"),
    ] {
        assert_eq!(wrong(expression), format!("cron is {expression:?}: {what}"));
    }
    for interval in ["@every 0 seconds", "@every -1 day", "@every 1.5 hours", "@every hour", "@every 2 weeks"] {
        assert_eq!(
            wrong(interval),
            format!(
                "cron is {interval:?}: @every needs a whole number from 1 to 4294967295, and a unit: seconds, minutes, hours or days"
            )
        );
    }
    assert_eq!(tick("@daily", Some("Nowhere"), Timestamp(0)).unwrap_err(), "timezone is unknown: \"Nowhere\"");
    assert_eq!(
        tick("@daily", None, Timestamp::LAST).unwrap_err(),
        "cron is \"@daily\": it has no tick until the year 9999"
    );
}

/// The numbers of a field, as `numbers` gives them to the generator.
fn field(numbers: std::ops::RangeInclusive<u32>) -> impl Strategy<Value = String> {
    let one = numbers.clone().prop_map(|number| number.to_string());
    let range =
        (numbers.clone(), numbers, 1..9u32).prop_map(|(a, b, step)| format!("{}-{}/{step}", a.min(b), a.max(b)));
    let list = prop::collection::vec(prop_oneof![one, range], 1..3).prop_map(|items| items.join(","));
    prop_oneof![3 => Just("*".to_owned()), 1 => (1..30u32).prop_map(|step| format!("*/{step}")), 3 => list]
}

fn matches(field: &str, first: u32, last: u32, number: u32) -> bool {
    field.split(',').any(|item| {
        let (range, step) = item.split_once('/').map_or((item, 1), |(range, step)| (range, step.parse().unwrap()));
        let (from, to) = match range.split_once('-') {
            Some((from, to)) => (from.parse().unwrap(), to.parse().unwrap()),
            None if range == "*" => (first, last),
            None => (range.parse().unwrap(), range.parse().unwrap()),
        };
        (from..=to).contains(&number) && (number - from).is_multiple_of(step)
    })
}

/// Whether an expression names this local time.
fn names(fields: &[String; 5], local: DateTime) -> bool {
    let [minute, hour, day, month, weekday] = fields;
    let sunday = local.weekday().to_sunday_zero_offset() as u32;
    let by_day = matches(day, 1, 31, local.day() as u32);
    let by_weekday = matches(weekday, 0, 7, sunday) || sunday == 0 && matches(weekday, 0, 7, 7);
    let both = day.starts_with('*') || weekday.starts_with('*');
    matches(minute, 0, 59, local.minute() as u32)
        && matches(hour, 0, 23, local.hour() as u32)
        && matches(month, 1, 12, local.month() as u32)
        && if both { by_day && by_weekday } else { by_day || by_weekday }
}

/// Whether an expression fires at this moment: the rules, minute by minute.
fn fires(fields: &[String; 5], zone: &TimeZone, moment: Moment) -> bool {
    let local_of = |moment: Moment| zone.to_offset(moment).to_datetime(moment);
    let minute = jiff::SignedDuration::from_mins(1);
    let (local, before) = (local_of(moment), local_of(moment.checked_sub(minute).unwrap()));
    if fields[1].starts_with('*') {
        return names(fields, local);
    }
    // The local times between the minute before and this one are left out. One that has come before does not count.
    let mut left_out = before.checked_add(minute).unwrap();
    while left_out < local {
        if names(fields, left_out) {
            return true;
        }
        left_out = left_out.checked_add(minute).unwrap();
    }
    let is_second = (1..=180).any(|back| {
        let earlier = moment.checked_sub(minute * back).unwrap();
        local_of(earlier) == local
    });
    names(fields, local) && !is_second
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// The next tick is the first minute that the rules name, across both changes of summer time.
    #[test]
    fn the_next_tick_is_the_first_that_the_rules_name(
        fields in (field(0..=59), field(0..=23), field(1..=31), field(1..=12), field(0..=7)),
        zone_name in prop::sample::select(&["Berlin", "Lord Howe", "New York"][..]),
        around in prop::sample::select(&["2026-03-29T01:00:00Z", "2026-10-25T01:00:00Z", "2026-10-03T15:30:00Z",
            "2026-04-04T15:00:00Z", "2026-11-01T06:00:00Z", "2026-03-08T07:00:00Z", "2027-12-31T23:00:00Z"][..]),
        minutes in -200..200i64,
        seconds in 0..60i64,
    ) {
        let (minute, hour, day, month, weekday) = fields;
        let fields = [minute, hour, day, month, weekday];
        let after = Timestamp(at(around).0 + (minutes * 60 + seconds) * 1_000_000);
        let ticked = tick(&fields.join(" "), Some(zone_name), after);
        let zone = zone(zone_name).unwrap();
        let start = Moment::from_microsecond(after.0 - after.0.rem_euclid(60_000_000)).unwrap();
        let mut minutes = (1..2_000i64).map(|minute| start.checked_add(jiff::SignedDuration::from_mins(minute)).unwrap());
        let first = minutes.find(|moment| fires(&fields, &zone, *moment));
        match (first, ticked) {
            (Some(first), ticked) => prop_assert_eq!(ticked, Ok(Timestamp(first.as_microsecond()))),
            (None, Ok(ticked)) => prop_assert!(ticked.0 - after.0 > 1_990 * 60_000_000),
            (None, Err(what)) => prop_assert!(what.ends_with("no month has such a day"), "{}", what),
        }
    }

    /// Ticks come after each other, and never at a moment twice.
    #[test]
    fn any_text_gives_a_later_tick_or_what_is_wrong(text in "[-0-9*/, @a-z]{0,30}", after in 0..4_000_000_000i64) {
        let after = Timestamp(after * 1_000_000);
        if let Ok(ticked) = tick(&text, Some("Berlin"), after) {
            prop_assert!(ticked > after);
        }
    }
}
