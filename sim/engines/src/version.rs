//! Versions as people give them: a release, a date, a commit on some day, an image built for a model.

use crate::question::Engine;
use std::cmp::Ordering;

/// A release number, patch level and post-release included.
pub type Release = [u32; 4];

/// Releases and the day (`yyyymmdd`) on which they were published, ascending. From the engines' release pages; days of 2026-05 and later are those on
/// which the published packages were built.
const SGLANG: &[(Release, u32)] = &[
    ([0, 3, 0, 0], 20240904),
    ([0, 4, 0, 0], 20241203),
    ([0, 4, 1, 0], 20241225),
    ([0, 4, 2, 0], 20250127),
    ([0, 4, 3, 0], 20250214),
    ([0, 4, 4, 0], 20250313),
    ([0, 4, 5, 0], 20250407),
    ([0, 4, 6, 0], 20250427),
    ([0, 4, 7, 0], 20250610),
    ([0, 4, 8, 0], 20250623),
    ([0, 4, 9, 0], 20250705),
    ([0, 4, 10, 0], 20250731),
    ([0, 5, 0, 0], 20250811),
    ([0, 5, 1, 0], 20250823),
    ([0, 5, 2, 0], 20250911),
    ([0, 5, 3, 0], 20251006),
    ([0, 5, 4, 0], 20251026),
    ([0, 5, 5, 0], 20251106),
    ([0, 5, 6, 0], 20251203),
    ([0, 5, 7, 0], 20260101),
    ([0, 5, 8, 0], 20260123),
    ([0, 5, 9, 0], 20260223),
    ([0, 5, 10, 0], 20260406),
    ([0, 5, 11, 0], 20260507),
    ([0, 5, 12, 0], 20260516),
    ([0, 5, 13, 0], 20260611),
    ([0, 5, 14, 0], 20260626),
    ([0, 5, 15, 0], 20260710),
    ([0, 5, 16, 0], 20260725),
    ([0, 5, 17, 0], 20260808),
    ([0, 5, 18, 0], 20260821),
    ([0, 5, 19, 0], 20260904),
    ([0, 5, 20, 0], 20260918),
    ([0, 5, 21, 0], 20261001),
    ([0, 5, 22, 0], 20261016),
    ([0, 5, 23, 0], 20261030),
];

/// As [`SGLANG`].
const VLLM: &[(Release, u32)] = &[
    ([0, 5, 1, 0], 20240705),
    ([0, 6, 0, 0], 20240904),
    ([0, 6, 6, 0], 20241227),
    ([0, 7, 0, 0], 20250127),
    ([0, 8, 0, 0], 20250318),
    ([0, 8, 5, 0], 20250428),
    ([0, 9, 0, 0], 20250515),
    ([0, 9, 1, 0], 20250610),
    ([0, 9, 2, 0], 20250707),
    ([0, 10, 0, 0], 20250724),
    ([0, 10, 1, 0], 20250818),
    ([0, 10, 2, 0], 20250913),
    ([0, 11, 0, 0], 20251002),
    ([0, 11, 1, 0], 20251118),
    ([0, 12, 0, 0], 20251203),
    ([0, 13, 0, 0], 20251218),
    ([0, 14, 0, 0], 20260120),
    ([0, 15, 0, 0], 20260129),
    ([0, 16, 0, 0], 20260213),
    ([0, 17, 0, 0], 20260307),
    ([0, 18, 0, 0], 20260320),
    ([0, 19, 0, 0], 20260403),
    ([0, 20, 0, 0], 20260425),
    ([0, 21, 0, 0], 20260515),
    ([0, 22, 0, 0], 20260529),
    ([0, 23, 0, 0], 20260615),
    ([0, 24, 0, 0], 20260629),
    ([0, 25, 0, 0], 20260711),
    ([0, 26, 0, 0], 20260725),
    ([0, 27, 0, 0], 20260810),
    ([0, 28, 0, 0], 20260825),
    ([0, 29, 0, 0], 20260909),
    ([0, 30, 0, 0], 20260922),
    ([0, 31, 0, 0], 20261003),
    ([0, 32, 0, 0], 20261017),
    ([0, 33, 0, 0], 20261101),
];

/// Pull requests and the day of their merge, ascending: what "after PR 21907" means in time.
const SGLANG_PULLS: &[(u32, u32)] = &[
    (4000, 20250303),
    (7616, 20250628),
    (8381, 20250726),
    (12231, 20251028),
    (16283, 20260104),
    (18233, 20260322),
    (21907, 20260402),
    (24548, 20260520),
    (29580, 20260628),
    (32962, 20260801),
    (38609, 20260905),
    (39078, 20260920),
];

/// As [`SGLANG_PULLS`].
const VLLM_PULLS: &[(u32, u32)] = &[
    (10000, 20241104),
    (20000, 20250624),
    (28000, 20251104),
    (35000, 20260222),
    (41096, 20260428),
    (45101, 20260610),
    (49760, 20260715),
    (56387, 20260911),
];

fn releases(engine: Engine) -> &'static [(Release, u32)] {
    match engine {
        Engine::Sglang => SGLANG,
        Engine::Vllm => VLLM,
    }
}

/// A version of an engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    /// The engine.
    pub engine: Engine,
    /// As given.
    pub text: String,
    /// The release, where one is named.
    pub release: Option<Release>,
    /// The day it stands for, `yyyymmdd`.
    pub day: u32,
    /// Whether nothing was said and the newest known is assumed.
    pub assumed: bool,
}

impl Version {
    /// The newest release that the tables know.
    pub fn newest(engine: Engine) -> Self {
        let (release, day) = *releases(engine).last().expect("the tables are not empty");
        Self { engine, text: shown(release), release: Some(release), day, assumed: true }
    }

    /// Reads a version in any of the ways in which people give one. Text without release, date or pull request means the newest.
    pub fn parse(engine: Engine, text: &str) -> Self {
        let text = text.trim();
        let newest = Self::newest(engine);
        // What follows a comma or stands in parentheses with a name in front belongs to another package: `flashinfer 0.5.3`.
        let own = text.split(',').next().unwrap_or_default();
        let release = before_other(own).split_whitespace().filter(|w| !is_nightly(w)).find_map(release_of).or_else(|| bracketed(own));
        let day = pull_day(engine, text).or_else(|| day_of(text));
        let (release, day) = match (release, day) {
            (Some(release), day) => (Some(release), day.unwrap_or_else(|| day_of_release(engine, release))),
            (None, Some(day)) => (None, day),
            (None, None) => return Self { text: if text.is_empty() { newest.text } else { text.to_owned() }, release: None, ..newest },
        };
        Self { engine, text: text.to_owned(), release, day, assumed: false }
    }

    /// Whether a text says which version is meant: a release, a day, a pull request, a build of some commit, or a word for the newest.
    pub fn says_which(engine: Engine, text: &str) -> bool {
        let newest = |w: &str| matches!(w.to_lowercase().as_str(), "latest" | "newest" | "main" | "nightly") || is_nightly(w);
        !Self::parse(engine, text).assumed || text.split_whitespace().any(newest)
    }
    /// What is assumed of the version, where it is not simply one that the tables know.
    pub fn assumption(&self) -> Option<String> {
        let newest = Self::newest(self.engine);
        if !self.assumed {
            let later = self.release.filter(|own| newest.release.is_some_and(|known| *own > known))?;
            let read = shown(later);
            return Some(format!(
                "{self} is read as release {read}, later than {}, the newest version known: what changed since is not",
                newest.text
            ));
        }
        Some(if self.text == newest.text {
            format!("{self}: the newest version known, as none is given")
        } else {
            format!("{self}: names no release or day that is known, so it is taken as the newest version known, {}", newest.text)
        })
    }

    /// Whether this version is `release` (`0.5.9`) or a later one.
    pub fn at_least(&self, release: &str) -> bool {
        let Some(other) = release_of(release) else { return false };
        match self.release {
            Some(own) => own.cmp(&other) != Ordering::Less,
            None => self.day >= day_of_release(self.engine, other),
        }
    }
    /// Whether this version includes what was merged on `day` (`yyyymmdd`) at the latest.
    pub fn since_day(&self, day: u32) -> bool {
        self.day >= day
    }
    /// The version of another package that the text names: `part("flashinfer")` of `main, flashinfer 0.5.3`.
    pub fn part(&self, package: &str) -> Option<Release> {
        let lower = self.text.to_lowercase();
        let (_, rest) = lower.split_once(&package.to_lowercase())?;
        release_of(rest.trim_start_matches([' ', '=', '-', ':']).split([' ', ')', ',']).next()?)
    }
    /// Whether the text has this word in it, whatever the case: `patched`, `120f`.
    pub fn says(&self, word: &str) -> bool {
        self.text.to_lowercase().contains(&word.to_lowercase())
    }
}

impl std::fmt::Display for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.engine.title(), self.text)
    }
}

/// Versions in which a row of a table holds: from `since` (included) until `until` (excluded); empty words mean always.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Range {
    /// First release, or empty.
    pub since: &'static str,
    /// First release in which it no longer holds, or empty.
    pub until: &'static str,
}

impl Range {
    /// Every version.
    pub const ALL: Range = Range { since: "", until: "" };
    /// From a release on.
    pub const fn since(since: &'static str) -> Self {
        Self { since, until: "" }
    }
    /// Before a release.
    pub const fn until(until: &'static str) -> Self {
        Self { since: "", until }
    }
    /// Between two releases.
    pub const fn between(since: &'static str, until: &'static str) -> Self {
        Self { since, until }
    }
    /// Whether a version is in the range. Ends may be releases (`0.5.9`) or days (`20260402`).
    pub fn contains(&self, version: &Version) -> bool {
        let reached =
            |end: &str| if end.contains('.') { version.at_least(end) } else { end.parse().is_ok_and(|day| version.since_day(day)) };
        (self.since.is_empty() || reached(self.since)) && (self.until.is_empty() || !reached(self.until))
    }
}

fn shown(r: Release) -> String {
    let post = if r[3] > 0 { format!(".post{}", r[3]) } else { String::new() };
    format!("{}.{}.{}{post}", r[0], r[1], r[2])
}

/// What stands before another package in parentheses: `main 2026-06-11 (flashinfer 0.6.12` is a day of main.
fn before_other(text: &str) -> &str {
    let Some((before, inside)) = text.split_once('(') else { return text };
    let inside = inside.to_lowercase();
    let own = ["sglang", "vllm", "v0", "v1"].iter().any(|w| inside.starts_with(w)) || !inside.starts_with(char::is_alphabetic);
    if own { text } else { before }
}

/// `0.5.8.post1`, `v0.22.x`, `0.4.6-0.4.7` (the first), `0.10.1.dev101` (what it leads to).
fn release_of(word: &str) -> Option<Release> {
    let word = word.trim_start_matches(['v', '(']);
    let word = word.split(['-', '+', ')', ',']).next()?;
    let mut out: Release = [0; 4];
    let mut count = 0;
    for (i, part) in word.split('.').enumerate() {
        if let Some(post) = part.strip_prefix("post") {
            out[3] = post.parse().ok()?;
            break;
        }
        if i > 0 && (part == "x" || part.starts_with("dev")) {
            break;
        }
        let digits: String = part.chars().take_while(char::is_ascii_digit).collect();
        // Numbers of more than four digits are days or commits.
        if digits.is_empty() || digits.len() > 4 || i > 2 {
            return if count >= 2 { Some(out) } else { None };
        }
        out[i] = digits.parse().ok()?;
        count += 1;
        if digits.len() < part.len() {
            break;
        }
    }
    // A year and a month are a date.
    (count >= 2 && out[0] < 1000).then_some(out)
}

/// `0.1.dev20073+g8e685d198`: a build between releases, counted in commits; the release number in it means nothing.
fn is_nightly(word: &str) -> bool {
    let commits = word.split_once(".dev").map(|(_, rest)| rest.chars().take_while(char::is_ascii_digit).count());
    commits.is_some_and(|digits| digits > 4)
}

/// `gptoss image (0.10.1 pre)`: a release in parentheses that no package's name precedes.
fn bracketed(text: &str) -> Option<Release> {
    let (_, inner) = text.split_once('(')?;
    release_of(inner.split([' ', ')', ',']).next()?)
}

/// `2026`, `2026-03`, `2026-03-22..04-02`, `before 2026-09-11`. A month means its middle, a year its middle.
fn day_of(text: &str) -> Option<u32> {
    let bytes = text.as_bytes();
    for start in 0..bytes.len().saturating_sub(3) {
        let boundary = start == 0 || !bytes[start - 1].is_ascii_alphanumeric() && bytes[start - 1] != b'.';
        if !boundary || !bytes[start..].starts_with(b"20") {
            continue;
        }
        let digits = |at: usize, n: usize| -> Option<u32> {
            let piece = bytes.get(at..at + n)?;
            piece.iter().all(u8::is_ascii_digit).then(|| piece.iter().fold(0, |sum, d| sum * 10 + u32::from(d - b'0')))
        };
        let Some(year) = digits(start, 4).filter(|_| !bytes.get(start + 4).is_some_and(u8::is_ascii_alphanumeric)) else { continue };
        let dashed = |at: usize| bytes.get(at) == Some(&b'-');
        let month = digits(start + 5, 2).filter(|m| dashed(start + 4) && (1..=12).contains(m));
        let day = digits(start + 8, 2).filter(|d| dashed(start + 7) && (1..=31).contains(d));
        let said = year * 10_000 + month.unwrap_or(7) * 100 + day.unwrap_or(if month.is_some() { 15 } else { 1 });
        let before = text[..start].trim_end().ends_with("before");
        return Some(said - u32::from(before));
    }
    None
}

fn pull_day(engine: Engine, text: &str) -> Option<u32> {
    let lower = text.to_lowercase();
    let (front, rest) = lower.split_once("pr ")?;
    // A span of days says more than the pull request it begins with.
    if day_of(front).is_some() {
        return None;
    }
    let number: u32 = rest.chars().take_while(char::is_ascii_digit).collect::<String>().parse().ok()?;
    let table = match engine {
        Engine::Sglang => SGLANG_PULLS,
        Engine::Vllm => VLLM_PULLS,
    };
    let at = table.partition_point(|(pull, _)| *pull < number);
    let day = table.get(at).or(table.last())?.1;
    Some(if front.trim_end().ends_with("before") { day - 1 } else { day })
}

/// The day of a release; between two known ones the day of the earlier plus a share of the gap is not worth computing: the earlier's next day.
fn day_of_release(engine: Engine, release: Release) -> u32 {
    let table = releases(engine);
    let at = table.partition_point(|(known, _)| *known <= release);
    match (at.checked_sub(1).and_then(|i| table.get(i)), table.get(at)) {
        (Some((known, day)), _) if *known == release => *day,
        (Some((_, day)), Some((_, next))) => day + u32::from(day + 1 < *next),
        (Some((_, day)), None) => day + 1,
        (None, _) => 20240101,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(engine: Engine, text: &str) -> (Option<Release>, u32) {
        let v = Version::parse(engine, text);
        (v.release, v.day)
    }

    #[test]
    fn another_package_in_parentheses_is_not_the_engine() {
        let of = |text: &str| Version::parse(Engine::Vllm, text);
        let main = of("main 2026-06-11 (flashinfer 0.6.12, cu130)");
        assert_eq!((main.release, main.day), (None, 20260611));
        assert_eq!(of("nightly image (vllm 0.22.1)").release, Some([0, 22, 1, 0]));
        assert_eq!(of("0.22.x (2026-06)").release, Some([0, 22, 0, 0]));
    }

    #[test]
    fn versions_are_read_as_people_give_them() {
        use Engine::{Sglang, Vllm};
        assert_eq!(of(Sglang, "0.5.9"), (Some([0, 5, 9, 0]), 20260223));
        assert_eq!(of(Sglang, "0.5.8.post1").0, Some([0, 5, 8, 1]));
        assert_eq!(of(Sglang, "0.4.9.post2-cu126").0, Some([0, 4, 9, 2]));
        assert_eq!(of(Sglang, "main at 1ab9b8e0a (2025-12), flashinfer 0.5.3"), (None, 20251215));
        assert_eq!(of(Sglang, "main after PR 21907"), (None, 20260402));
        assert_eq!(of(Sglang, "main 2026-03-22..04-02 (after PR 18233)"), (None, 20260322));
        assert_eq!(of(Sglang, "0.4.6-0.4.7 (2025-06)"), (Some([0, 4, 6, 0]), 20250615));
        assert_eq!(of(Sglang, "main bfefdc52d (2026-07), flashinfer 0.6.14"), (None, 20260715));
        assert_eq!(of(Vllm, "main before 2026-09-11"), (None, 20260910));
        assert_eq!(of(Vllm, "0.10.1.dev101").0, Some([0, 10, 1, 0]));
        assert_eq!(of(Vllm, "0.22.x nightly aarch64 (2026-06)"), (Some([0, 22, 0, 0]), 20260615));
        assert_eq!(of(Vllm, "gptoss image (0.10.1 pre)").0, Some([0, 10, 1, 0]));
        assert_eq!(of(Vllm, "2026"), (None, 20260701));
        assert!(Version::parse(Vllm, "0.1.dev20073+g8e685d198").assumed);
        assert!(Version::parse(Vllm, "").at_least("0.16.0"));
        for (text, which) in
            [("0.11.0", true), ("2026-03", true), ("nightly", true), ("0.1.dev20073+g8e685d198", true), ("foo", false), ("", false)]
        {
            assert_eq!(Version::says_which(Vllm, text), which, "{text}");
        }
        let foo = Version::parse(Vllm, "foo").assumption().unwrap_or_default();
        assert!(foo.contains("foo: names no release") && !foo.contains("none is given"), "{foo}");
        assert!(Version::newest(Vllm).assumption().is_some_and(|a| a.contains("none is given")));
        assert!(Version::parse(Vllm, "0.99.0").assumption().is_some_and(|a| a.contains("read as release 0.99.0, later than")));
        assert_eq!(Version::parse(Vllm, "0.11.0").assumption(), None);
        assert_eq!(Version::parse(Sglang, "main (2025-12), flashinfer 0.5.3").part("flashinfer"), Some([0, 5, 3, 0]));
    }

    #[test]
    fn ranges_take_releases_and_days() {
        let old = Version::parse(Engine::Sglang, "0.5.8");
        let dated = Version::parse(Engine::Sglang, "2026-09");
        assert!(Range::until("0.5.9").contains(&old) && !Range::until("0.5.9").contains(&dated));
        assert!(Range::since("0.5.10").contains(&dated) && !Range::since("0.5.10").contains(&old));
        assert!(Range::between("20260322", "20260402").contains(&Version::parse(Engine::Sglang, "2026-03-25")));
        assert!(Range::ALL.contains(&old));
    }
}
