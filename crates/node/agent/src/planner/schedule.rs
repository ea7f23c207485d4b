//! Parses `--uptime` and `--downtime`, the hours in which the daemon takes tasks, in ClearML's syntax.

use std::fmt;

use jiff::Zoned;
use jiff::civil::Weekday;

/// As ClearML writes and counts them: a range of days does not go round the end of the week.
const DAYS: [(&str, Weekday); 7] = [
    ("SUN", Weekday::Sunday),
    ("MON", Weekday::Monday),
    ("TUE", Weekday::Tuesday),
    ("WED", Weekday::Wednesday),
    ("THU", Weekday::Thursday),
    ("FRI", Weekday::Friday),
    ("SAT", Weekday::Saturday),
];

/// When the daemon takes tasks. Running tasks continue at any hour.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Schedule {
    /// At any time.
    #[default]
    Always,
    /// Within these hours.
    Up(Hours),
    /// Except within these hours.
    Down(Hours),
}

/// Hours of the week.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hours {
    text: Vec<String>,
    /// Bit N: hour N of the day, for each day as in `DAYS`.
    of_day: [u32; 7],
}

/// An error in a part of a schedule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "\"{given}\" is not HOURS DAYS ({why}); write for example \"17-20 TUE\" or \"0-8,20-24 SUN,MON-FRI\""
)]
pub struct ScheduleError {
    given: String,
    why: &'static str,
}

impl Hours {
    /// Reads `HOURS DAYS` pieces: hours from 0 to 24, one alone means until midnight; days SUN to SAT.
    ///
    /// # Errors
    /// Names the piece that is not of this form.
    pub fn parse(pieces: &[String]) -> Result<Self, ScheduleError> {
        let mut of_day = [0; 7];
        for piece in pieces {
            let (hours, days) = piece_of(piece).map_err(|why| ScheduleError { given: piece.clone(), why })?;
            of_day.iter_mut().zip(days).filter(|(_, day)| *day).for_each(|(bits, _)| *bits |= hours);
        }
        Ok(Self { text: pieces.to_vec(), of_day })
    }

    fn has(&self, day: Weekday, hour: i8) -> bool {
        let of_day = DAYS.iter().zip(self.of_day).find(|((_, known), _)| *known == day);
        of_day.is_some_and(|(_, bits)| bits & (1 << hour) != 0)
    }
}

impl fmt::Display for Hours {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text.join(", "))
    }
}

impl Schedule {
    /// Why no task is taken now, if that is so.
    pub(crate) fn closed(&self, now: &Zoned) -> Option<String> {
        let within = |hours: &Hours| hours.has(now.weekday(), now.hour());
        match self {
            Self::Up(hours) if !within(hours) => Some(format!("this agent takes tasks at {hours} only")),
            Self::Down(hours) if within(hours) => Some(format!("this agent takes no tasks at {hours}")),
            _ => None,
        }
    }
}

fn piece_of(piece: &str) -> Result<(u32, [bool; 7]), &'static str> {
    let mut words = piece.split_whitespace();
    let (Some(hours), Some(days), None) = (words.next(), words.next(), words.next()) else {
        return Err("two words are needed");
    };
    let mut bits = 0;
    for range in hours.split(',') {
        bits |= hours_of(range)?;
    }
    let mut on = [false; 7];
    for range in days.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last) = (day_of(first)?, day_of(last)?);
        on.get_mut(first..=last).ok_or("the days are in the wrong order")?.fill(true);
    }
    Ok((bits, on))
}

fn hours_of(range: &str) -> Result<u32, &'static str> {
    let number = |text: &str| text.parse::<u32>().ok().filter(|hour| *hour <= 24);
    let (first, last) = range.split_once('-').unwrap_or((range, "24"));
    let hours = number(first).zip(number(last)).ok_or("hours are numbers from 0 to 24")?;
    // Midnight is 0 as well as 24.
    let (first, last) = (hours.0, if hours.1 == 0 { 24 } else { hours.1 });
    if first >= last { Err("the hours are in the wrong order") } else { Ok((1 << last) - (1 << first)) }
}

fn day_of(text: &str) -> Result<usize, &'static str> {
    let known = DAYS.iter().position(|(name, _)| name.eq_ignore_ascii_case(text));
    known.ok_or("days are SUN, MON, TUE, WED, THU, FRI and SAT")
}

#[cfg(test)]
mod tests {
    use jiff::civil::date;

    use super::*;

    fn hours(pieces: &[&str]) -> Result<Hours, ScheduleError> {
        Hours::parse(&pieces.iter().map(|&piece| piece.to_owned()).collect::<Vec<_>>())
    }

    /// A day of November 2026; the 1st is a Sunday.
    fn at(day: i8, hour: i8) -> Zoned {
        date(2026, 11, day).at(hour, 30, 0, 0).to_zoned(jiff::tz::TimeZone::UTC).unwrap()
    }

    #[test]
    fn tasks_are_taken_at_the_hours_that_were_given() {
        let up = Schedule::Up(hours(&["17-20 TUE", "9,0-2 sat,MON-mon"]).unwrap());
        for (day, hour) in [(3, 17), (3, 19), (7, 9), (7, 23), (2, 0), (2, 1)] {
            assert_eq!(up.closed(&at(day, hour)), None, "{day}. {hour}:30");
        }
        for (day, hour) in [(3, 16), (3, 20), (4, 18), (7, 8), (7, 2), (1, 12)] {
            let why = up.closed(&at(day, hour)).unwrap();
            assert_eq!(why, "this agent takes tasks at 17-20 TUE, 9,0-2 sat,MON-mon only");
        }
        let down = Schedule::Down(hours(&["22-0 SUN-SAT"]).unwrap());
        assert_eq!(down.closed(&at(5, 21)), None);
        assert_eq!(down.closed(&at(5, 23)).unwrap(), "this agent takes no tasks at 22-0 SUN-SAT");
        assert_eq!(Schedule::Always.closed(&at(5, 23)), None);
    }

    #[test]
    fn what_is_no_schedule_is_named() {
        for bad in
            ["", "17-20", "17-20 TUE WED", "20-17 TUE", "1-25 TUE", "x TUE", "1-2 MONDAY", "1-2 SAT-SUN"]
        {
            let error = hours(&["1 MON", bad]).unwrap_err().to_string();
            assert!(error.starts_with(&format!("\"{bad}\" is not HOURS DAYS")), "{error}");
        }
    }
}
