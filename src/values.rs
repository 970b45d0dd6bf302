//! Numbers and lists as flags take them: what is wrong is said in words, with what would be right.

use crate::output;
use std::fmt::Display;
use std::ops::RangeInclusive;
use std::str::FromStr;

/// A whole number of a range.
pub(crate) fn whole<T>(range: RangeInclusive<T>) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static
where
    T: FromStr + Display + PartialOrd + Clone + Send + Sync + 'static,
{
    move |text| {
        let (least, most) = (range.start(), range.end());
        let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        let why = match text.parse::<T>() {
            Ok(n) if range.contains(&n) => return Ok(n),
            Ok(n) if n < *least => format!("less than {least}"),
            Ok(_) => format!("more than {most}"),
            Err(_) if text.is_empty() => "no number".to_owned(),
            Err(_) if text.strip_prefix('-').is_some_and(digits) => format!("less than {least}"),
            Err(_) if digits(text) => format!("more than {most}"),
            Err(_) => "not a whole number".to_owned(),
        };
        Err(format!("{why}\n  accepted: a whole number from {least} to {most}"))
    }
}

/// A number that `holds`; `accepted` says which those are.
pub(crate) fn real(
    accepted: &'static str,
    holds: impl Fn(f64) -> bool + Clone + Send + Sync + 'static,
) -> impl Fn(&str) -> Result<f64, String> + Clone + Send + Sync + 'static {
    move |text| match text.parse::<f64>() {
        Ok(n) if n.is_finite() && holds(n) => Ok(n),
        Ok(_) => Err(format!("out of range\n  accepted: {accepted}")),
        Err(_) if text.is_empty() => Err(format!("no number\n  accepted: {accepted}")),
        Err(_) => Err(format!("not a number\n  accepted: {accepted}")),
    }
}

/// The values of a list, each once, in the order given; what was given again is said.
pub(crate) fn each_once<T: Clone + PartialEq + Display>(flag: &str, values: &[T]) -> Vec<T> {
    let mut out: Vec<T> = Vec::new();
    let mut again: Vec<T> = Vec::new();
    for value in values {
        if !out.contains(value) {
            out.push(value.clone());
        } else if !again.contains(value) {
            again.push(value.clone());
        }
    }
    for value in again {
        output::note(&format!("note: {flag}: {value} is given more than once and taken once"));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_numbers_say_what_is_wrong_with_them() {
        let ranks = whole::<u32>(1..=4096);
        assert_eq!((ranks("1"), ranks("4096")), (Ok(1), Ok(4096)));
        for (text, why) in [
            ("", "no number"),
            ("x", "not a whole number"),
            ("1.5", "not a whole number"),
            ("1e3", "not a whole number"),
            ("-", "not a whole number"),
            ("0", "less than 1"),
            ("-1", "less than 1"),
            ("4097", "more than 4096"),
            ("99999999999999999999999", "more than 4096"),
        ] {
            assert_eq!(ranks(text), Err(format!("{why}\n  accepted: a whole number from 1 to 4096")), "{text:?}");
        }
    }

    #[test]
    fn other_numbers_are_finite_and_hold_what_is_asked() {
        let share = real("a number above 0, at most 1", |n| n > 0.0 && n <= 1.0);
        assert_eq!((share("0.5"), share("1")), (Ok(0.5), Ok(1.0)));
        for text in ["", "x", "0", "-1", "1.1", "nan", "inf"] {
            assert!(share(text).unwrap_err().ends_with("\n  accepted: a number above 0, at most 1"), "{text:?}");
        }
    }

    #[test]
    fn a_list_has_each_value_once() {
        assert_eq!(each_once("--batches", &[8, 1, 8, 8, 64, 1]), [8, 1, 64]);
    }
}
