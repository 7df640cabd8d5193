//! `strftime_now`: today's date for the templates that mention it, in UTC.

use std::fmt::Write as _;
use std::time::{SystemTime, UNIX_EPOCH};

const DAYS: [&str; 7] = [
    "Sunday",
    "Monday",
    "Tuesday",
    "Wednesday",
    "Thursday",
    "Friday",
    "Saturday",
];
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

struct Date {
    year: u64,
    /// 1 to 12.
    month: usize,
    /// 1 to 31.
    day: u64,
    /// 1 to 366.
    day_of_year: u64,
    /// 0 is Sunday.
    weekday: usize,
    hour: u64,
    minute: u64,
    second: u64,
}

impl Date {
    fn of(time: SystemTime) -> Self {
        let seconds = time.duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
        let days = seconds / 86_400;
        let (mut year, mut day) = (1970, days);
        while day >= year_days(year) {
            day -= year_days(year);
            year += 1;
        }
        let day_of_year = day + 1;
        let mut month = 0;
        while day >= month_days(year, month) {
            day -= month_days(year, month);
            month += 1;
        }
        Self {
            year,
            month: month + 1,
            day: day + 1,
            day_of_year,
            // 1970-01-01 was a Thursday.
            weekday: ((days + 4) % 7) as usize,
            hour: seconds / 3600 % 24,
            minute: seconds / 60 % 60,
            second: seconds % 60,
        }
    }
}

fn is_leap(year: u64) -> bool {
    year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
}

fn year_days(year: u64) -> u64 {
    365 + u64::from(is_leap(year))
}

/// `month` counts from 0.
fn month_days(year: u64, month: usize) -> u64 {
    match month {
        1 => 28 + u64::from(is_leap(year)),
        3 | 5 | 8 | 10 => 30,
        _ => 31,
    }
}

/// Python's `strftime`, as far as templates use it. A code it does not know stays as it is.
pub(super) fn strftime(format: &str, time: SystemTime) -> String {
    formatted(format, &Date::of(time))
}

fn formatted(format: &str, date: &Date) -> String {
    let mut out = String::new();
    let mut chars = format.chars().peekable();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let padded = chars.next_if_eq(&'-').is_none();
        match chars.next() {
            Some(code) if write_code(&mut out, date, code, padded) => {}
            other => {
                out.push_str(if padded { "%" } else { "%-" });
                out.extend(other);
            }
        }
    }
    out
}

/// False for an unknown code.
fn write_code(out: &mut String, date: &Date, code: char, padded: bool) -> bool {
    let day = DAYS[date.weekday];
    let month = MONTHS[date.month - 1];
    let hour12 = (date.hour + 11) % 12 + 1;
    let number = |out: &mut String, value: u64, width: usize| {
        let width = if padded { width } else { 0 };
        write!(out, "{value:0width$}").is_ok()
    };
    match code {
        'Y' => number(out, date.year, 4),
        'y' => number(out, date.year % 100, 2),
        'm' => number(out, date.month as u64, 2),
        'd' => number(out, date.day, 2),
        'e' => write!(out, "{:2}", date.day).is_ok(),
        'j' => number(out, date.day_of_year, 3),
        'H' => number(out, date.hour, 2),
        'I' => number(out, hour12, 2),
        'M' => number(out, date.minute, 2),
        'S' => number(out, date.second, 2),
        'B' => write!(out, "{month}").is_ok(),
        'b' | 'h' => write!(out, "{}", &month[..3]).is_ok(),
        'A' => write!(out, "{day}").is_ok(),
        'a' => write!(out, "{}", &day[..3]).is_ok(),
        'p' => write!(out, "{}", if date.hour < 12 { "AM" } else { "PM" }).is_ok(),
        'F' => write!(out, "{}", formatted("%Y-%m-%d", date)).is_ok(),
        'T' => write!(out, "{}", formatted("%H:%M:%S", date)).is_ok(),
        'Z' => write!(out, "UTC").is_ok(),
        'z' => write!(out, "+0000").is_ok(),
        '%' => out.write_char('%').is_ok(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn at(seconds: u64, format: &str) -> String {
        strftime(format, UNIX_EPOCH + Duration::from_secs(seconds))
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        // As Python's datetime.fromtimestamp(…, timezone.utc) has them.
        let format = "%Y-%m-%d %H:%M:%S %a %b %j";
        assert_eq!(at(0, format), "1970-01-01 00:00:00 Thu Jan 001");
        assert_eq!(at(951_782_399, format), "2000-02-28 23:59:59 Mon Feb 059");
        assert_eq!(at(951_868_800, format), "2000-03-01 00:00:00 Wed Mar 061");
        assert_eq!(at(1_721_952_000, format), "2024-07-26 00:00:00 Fri Jul 208");
        assert_eq!(at(1_735_689_599, format), "2024-12-31 23:59:59 Tue Dec 366");
        assert_eq!(at(4_107_542_400, format), "2100-03-01 00:00:00 Mon Mar 060");
    }

    #[test]
    fn codes_are_pythons() {
        let afternoon = 1_720_187_105; // 2024-07-05 13:45:05
        assert_eq!(at(afternoon, "%d %b %Y"), "05 Jul 2024");
        assert_eq!(at(afternoon, "%-d %B, %A"), "5 July, Friday");
        assert_eq!(at(afternoon, "%I:%M %p|%-I|%e|%y"), "01:45 PM|1| 5|24");
        assert_eq!(
            at(afternoon, "%F %T %Z %z %%"),
            "2024-07-05 13:45:05 UTC +0000 %"
        );
        assert_eq!(at(afternoon, "100%% é %Q %-Q %"), "100% é %Q %-Q %");
    }
}
