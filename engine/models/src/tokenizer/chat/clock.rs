//! `strftime_now`: today's date for the templates that mention it, in UTC.

use std::time::SystemTime;

use jiff::Timestamp;
use jiff::fmt::strtime::{BrokenDownTime, Config, PosixCustom};
use jiff::tz::TimeZone;

/// The codes of Python's `strftime` (with glibc, in the C locale).
const CODES: &str = "aAbBcCdDeFfgGhHIjklmMnpPrRsStTuUVwWxXyYzZ%";
/// Those that `E` and `O` may stand before, which change nothing in that locale.
const OTHER_ERA: &str = "cCxXyY";
const OTHER_DIGITS: &str = "deHImMSuUVwWy";

/// Python's `strftime`. A code it does not know stays as it is.
pub(super) fn strftime(format: &str, time: SystemTime) -> String {
    let time = Timestamp::try_from(time).unwrap_or(Timestamp::UNIX_EPOCH);
    let time = BrokenDownTime::from(&time.to_zoned_datetime(TimeZone::UTC));
    let config = Config::new().custom(PosixCustom::new()).lenient(true);
    let text = time.to_string_with_config(&config, known_codes(format));
    text.unwrap_or_else(|_| format.to_owned())
}

/// The format with a second `%` before each code that is not one of [`CODES`], of which jiff has
/// more.
fn known_codes(format: &str) -> String {
    let mut out = String::new();
    let mut rest = format;
    while let Some((text, code)) = rest.split_once('%') {
        out.push_str(text);
        let name = code.strip_prefix(['-', '_', '0', '^', '#']).unwrap_or(code);
        let flag = &code[..code.len() - name.len()];
        let other = match name.as_bytes() {
            [b'E', code, ..] => OTHER_ERA.as_bytes().contains(code),
            [b'O', code, ..] => OTHER_DIGITS.as_bytes().contains(code),
            _ => false,
        };
        let name = &name[usize::from(other)..];
        match name.chars().next() {
            Some('%') => out.push_str("%%"),
            // Microseconds, where jiff has as many digits as it takes.
            Some('f') => out.push_str("%6f"),
            Some(c) if CODES.contains(c) => {
                out.push('%');
                // The other case: capitals for names, where jiff changes each letter's.
                let flag = if flag == "#" && "aAbBh".contains(c) {
                    "^"
                } else {
                    flag
                };
                out.push_str(flag);
                out.push(c);
            }
            _ => {
                out.push_str("%%");
                rest = code;
                continue;
            }
        }
        rest = &name[1..];
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, UNIX_EPOCH};

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
        assert_eq!(at(afternoon, "%-j %-m %-y %-S %-%"), "187 7 24 5 %");
        assert_eq!(
            at(afternoon, "%c|%x|%X"),
            "Fri Jul  5 13:45:05 2024|07/05/24|13:45:05"
        );
        assert_eq!(
            at(afternoon, "%D %R %r %P %s"),
            "07/05/24 13:45 01:45:05 PM pm 1720187105"
        );
        assert_eq!(
            at(afternoon, "%G-W%V-%u %U %W %w %C"),
            "2024-W27-5 26 27 5 20"
        );
        assert_eq!(
            at(afternoon, "%h %H %-H %k %l %n%t"),
            "Jul 13 13 13  1 \n\t"
        );
        assert_eq!(at(afternoon, "%f %N %:z %é %- %"), "000000 %N %:z %é %- %");
        let earlier = UNIX_EPOCH - Duration::from_millis(250);
        assert_eq!(strftime("%F %T.%f", earlier), "1969-12-31 23:59:59.750000");
    }
}
