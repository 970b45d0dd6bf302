//! Typed access to the fields of a JSON object. Every getter notes what is wrong and where, so that one read finds every fault.

use super::error::{ConfigError, Fault};
use super::position::{Part, find, path_text};
use serde_json::{Map, Value};
use std::cell::RefCell;
use std::ops::RangeInclusive;

/// Most layers a model may have; larger numbers are typing errors, and layers are materialized one by one.
pub(super) const MAX_LAYERS: u64 = 10_000;
/// Most routed experts of a layer.
pub(super) const MAX_EXPERTS: u64 = 16_384;
/// Largest hidden size, latent rank and similar widths.
pub(super) const MAX_WIDTH: u64 = 1 << 20;
/// Largest intermediate size.
pub(super) const MAX_INTERMEDIATE: u64 = 1 << 22;
/// Largest vocabulary.
pub(super) const MAX_VOCAB: u64 = 1 << 24;
/// Most heads, and largest head.
pub(super) const MAX_HEADS: u64 = 1 << 14;
/// Longest context.
pub(super) const MAX_POSITIONS: u64 = u32::MAX as u64;

/// Which of the two texts a field is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// `config.json`.
    Config,
    /// `hf_quant_config.json`.
    Quantization,
}

/// Name of the second file in error messages.
pub(super) const QUANTIZATION_FILE: &str = "hf_quant_config.json";

#[derive(PartialEq)]
struct RawFault {
    source: Source,
    parts: Vec<Part>,
    problem: String,
    accepted: String,
}

/// Collects faults, assumed defaults and warnings during one read.
#[derive(Default)]
pub(super) struct Sink {
    faults: RefCell<Vec<RawFault>>,
    assumed: RefCell<Vec<String>>,
    warnings: RefCell<Vec<String>>,
}

/// A field may be looked at once per layer; what is wrong with it is said once.
fn push_new<T: PartialEq>(list: &RefCell<Vec<T>>, item: T) {
    let mut list = list.borrow_mut();
    if !list.contains(&item) {
        list.push(item);
    }
}

impl Sink {
    pub(super) fn fault(&self, source: Source, parts: Vec<Part>, problem: impl Into<String>, accepted: impl Into<String>) {
        let fault = RawFault { source, parts, problem: problem.into(), accepted: accepted.into() };
        push_new(&self.faults, fault);
    }
    pub(super) fn warn(&self, text: impl Into<String>) {
        push_new(&self.warnings, text.into());
    }
    pub(super) fn is_clean(&self) -> bool {
        self.faults.borrow().is_empty()
    }
    /// Warnings in the order they were noted, the assumed defaults last.
    pub(super) fn take_warnings(&self) -> Vec<String> {
        let mut warnings = self.warnings.take();
        let assumed = self.assumed.take();
        if !assumed.is_empty() {
            warnings.push(format!("not in the configuration, the defaults of transformers 5.17 are assumed: {}", assumed.join(", ")));
        }
        warnings
    }
    pub(super) fn into_error(self, name: &str, text: &str, quantization: Option<&str>) -> ConfigError {
        let faults = self.faults.into_inner().into_iter().map(|raw| {
            let (file, text) = match raw.source {
                Source::Config => (name, text),
                Source::Quantization => (QUANTIZATION_FILE, quantization.unwrap_or_default()),
            };
            // A missing field has no place of its own: show the object that lacks it.
            let position = (0..=raw.parts.len()).rev().find_map(|n| find(text, &raw.parts[..n]));
            Fault { file: file.into(), path: path_text(&raw.parts), position, problem: raw.problem, accepted: raw.accepted }
        });
        ConfigError { name: name.into(), faults: faults.collect() }
    }
}

/// What a getter's conversion rejects: what the value is, and what would be right.
pub(super) struct Wrong {
    problem: String,
    accepted: String,
}

impl Wrong {
    pub(super) fn new(problem: impl Into<String>, accepted: impl Into<String>) -> Self {
        Self { problem: problem.into(), accepted: accepted.into() }
    }
}

/// One JSON object of the configuration.
pub(super) struct Fields<'a> {
    map: &'a Map<String, Value>,
    parts: Vec<Part>,
    source: Source,
    pub(super) sink: &'a Sink,
}

impl<'a> Fields<'a> {
    pub(super) fn root(map: &'a Map<String, Value>, source: Source, sink: &'a Sink) -> Self {
        Self { map, parts: Vec::new(), source, sink }
    }

    fn parts(&self, key: &str) -> Vec<Part> {
        let mut parts = self.parts.clone();
        parts.push(Part::Key(key.into()));
        parts
    }
    /// Path of a field of this object.
    pub(super) fn path(&self, key: &str) -> String {
        path_text(&self.parts(key))
    }
    /// Notes a fault of a field.
    pub(super) fn fault(&self, key: &str, problem: impl Into<String>, accepted: impl Into<String>) {
        self.sink.fault(self.source, self.parts(key), problem, accepted);
    }
    /// Notes a fault of an element of a list field.
    pub(super) fn element_fault(&self, key: &str, index: usize, problem: impl Into<String>, accepted: impl Into<String>) {
        let mut parts = self.parts(key);
        parts.push(Part::Index(index));
        self.sink.fault(self.source, parts, problem, accepted);
    }

    /// The raw value; `null` counts as absent.
    pub(super) fn raw(&self, key: &str) -> Option<&'a Value> {
        self.map.get(key).filter(|v| !v.is_null())
    }
    /// Whether the key stands in the object, `null` included.
    pub(super) fn mentions(&self, key: &str) -> bool {
        self.map.contains_key(key)
    }
    pub(super) fn has(&self, key: &str) -> bool {
        self.raw(key).is_some()
    }
    pub(super) fn keys(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        self.map.keys().map(String::as_str)
    }

    /// The key of `keys` that is present, the first of them otherwise.
    pub(super) fn which<'k>(&self, keys: &[&'k str]) -> &'k str {
        keys.iter().find(|k| self.has(k)).unwrap_or(&keys[0])
    }

    /// Converts the value of the first present key. Outer `None`: a fault was noted. Inner `None`: absent.
    /// Synonyms that are present with different values contradict each other.
    fn convert<T: PartialEq>(&self, keys: &[&str], f: impl Fn(&'a Value) -> Result<T, Wrong>) -> Option<Option<T>> {
        let mut found: Option<(&str, T)> = None;
        for key in keys {
            let Some(value) = self.raw(key) else { continue };
            match f(value) {
                Err(wrong) => {
                    self.fault(key, wrong.problem, wrong.accepted);
                    return None;
                }
                Ok(converted) => match &found {
                    None => found = Some((key, converted)),
                    Some((first, earlier)) if *earlier != converted => {
                        self.fault(key, format!("is {}, but {first} says otherwise", describe(value)), format!("the value of {first}"));
                        return None;
                    }
                    Some(_) => {}
                },
            }
        }
        Some(found.map(|(_, v)| v))
    }

    fn missing(&self, keys: &[&str], accepted: impl Into<String>) {
        let also = if keys.len() > 1 { format!(" (also read as {})", keys[1..].join(", ")) } else { String::new() };
        self.fault(keys[0], format!("is missing{also}"), accepted);
    }

    /// A whole number, `None` inside where it is absent.
    pub(super) fn maybe_u64(&self, keys: &[&str], range: RangeInclusive<u64>) -> Option<Option<u64>> {
        self.convert(keys, |v| whole(v, &range))
    }
    /// A whole number that must be there.
    pub(super) fn u64(&self, keys: &[&str], range: RangeInclusive<u64>) -> Option<u64> {
        let value = self.maybe_u64(keys, range.clone())?;
        if value.is_none() {
            self.missing(keys, accepted_range(&range));
        }
        value
    }
    /// A whole number with a default that needs no mention.
    pub(super) fn u64_or(&self, keys: &[&str], range: RangeInclusive<u64>, default: u64) -> Option<u64> {
        Some(self.maybe_u64(keys, range)?.unwrap_or(default))
    }
    /// A whole number whose default is worth a warning.
    pub(super) fn u64_assumed(&self, keys: &[&str], range: RangeInclusive<u64>, default: u64) -> Option<u64> {
        let value = self.maybe_u64(keys, range)?;
        Some(value.unwrap_or_else(|| self.assume(keys[0], default)))
    }
    /// A number that must be there and fits `u32` (the range says so).
    pub(super) fn u32(&self, keys: &[&str], range: RangeInclusive<u64>) -> Option<u32> {
        self.u64(keys, range).and_then(|v| u32::try_from(v).ok())
    }
    /// Notes that a default was taken, and gives it.
    pub(super) fn assume<T: std::fmt::Display>(&self, key: &str, value: T) -> T {
        push_new(&self.sink.assumed, format!("{key} = {value}"));
        value
    }

    /// A finite number in a range, `None` inside where it is absent.
    pub(super) fn maybe_f64(&self, keys: &[&str], range: RangeInclusive<f64>) -> Option<Option<f64>> {
        self.convert(keys, |v| {
            let accepted = || format!("a number from {:?} to {:?}", range.start(), range.end());
            match v.as_f64() {
                Some(x) if range.contains(&x) => Ok(x),
                _ => Err(Wrong::new(format!("is {}", describe(v)), accepted())),
            }
        })
    }
    pub(super) fn f64_or(&self, keys: &[&str], range: RangeInclusive<f64>, default: f64) -> Option<f64> {
        Some(self.maybe_f64(keys, range)?.unwrap_or(default))
    }
    pub(super) fn f64_assumed(&self, keys: &[&str], range: RangeInclusive<f64>, default: f64) -> Option<f64> {
        let value = self.maybe_f64(keys, range)?;
        Some(value.unwrap_or_else(|| self.assume(keys[0], default)))
    }

    pub(super) fn maybe_bool(&self, keys: &[&str]) -> Option<Option<bool>> {
        self.convert(keys, |v| v.as_bool().ok_or_else(|| Wrong::new(format!("is {}", describe(v)), "true, false")))
    }
    /// A flag. An explicit `null` is no, as in the Python code that tests it; only an absent one has the default.
    pub(super) fn bool_or(&self, keys: &[&str], default: bool) -> Option<bool> {
        Some(self.maybe_bool(keys)?.unwrap_or(default && !self.mentions_any(keys)))
    }
    pub(super) fn bool_assumed(&self, keys: &[&str], default: bool) -> Option<bool> {
        let value = self.maybe_bool(keys)?;
        let absent = || if self.mentions_any(keys) { false } else { self.assume(keys[0], default) };
        Some(value.unwrap_or_else(absent))
    }
    fn mentions_any(&self, keys: &[&str]) -> bool {
        keys.iter().any(|key| self.mentions(key))
    }

    pub(super) fn maybe_str(&self, keys: &[&str]) -> Option<Option<&'a str>> {
        self.convert(keys, |v| v.as_str().ok_or_else(|| Wrong::new(format!("is {}", describe(v)), "a string")))
    }
    /// One of a set of words, `None` inside where it is absent.
    pub(super) fn maybe_choice<'c>(&self, keys: &[&str], choices: &[&'c str]) -> Option<Option<&'c str>> {
        self.convert(keys, |v| {
            let choice = v.as_str().and_then(|s| choices.iter().find(|c| **c == s));
            choice.copied().ok_or_else(|| Wrong::new(format!("is {}", describe(v)), choices.join(", ")))
        })
    }

    /// A list, `None` inside where it is absent.
    pub(super) fn maybe_list(&self, key: &str) -> Option<Option<&'a Vec<Value>>> {
        self.convert(&[key], |v| v.as_array().ok_or_else(|| Wrong::new(format!("is {}", describe(v)), "a list")))
    }
    /// A list of strings, `None` inside where it is absent.
    pub(super) fn maybe_strings(&self, key: &str) -> Option<Option<Vec<&'a str>>> {
        let Some(list) = self.maybe_list(key)? else { return Some(None) };
        let mut strings = Vec::with_capacity(list.len());
        for (i, value) in list.iter().enumerate() {
            let Some(s) = value.as_str() else {
                self.element_fault(key, i, format!("is {}", describe(value)), "a string");
                return None;
            };
            strings.push(s);
        }
        Some(Some(strings))
    }
    /// A list of whole numbers, `None` inside where it is absent.
    pub(super) fn maybe_numbers(&self, key: &str, range: RangeInclusive<u64>) -> Option<Option<Vec<u64>>> {
        let Some(list) = self.maybe_list(key)? else { return Some(None) };
        let mut numbers = Vec::with_capacity(list.len());
        for (i, value) in list.iter().enumerate() {
            match whole(value, &range) {
                Ok(n) => numbers.push(n),
                Err(wrong) => {
                    self.element_fault(key, i, wrong.problem, wrong.accepted);
                    return None;
                }
            }
        }
        Some(Some(numbers))
    }

    /// An object inside this one, `None` inside where it is absent.
    pub(super) fn maybe_object(&self, key: &str) -> Option<Option<Fields<'a>>> {
        let object = self.convert(&[key], |v| v.as_object().ok_or_else(|| Wrong::new(format!("is {}", describe(v)), "an object")))?;
        Some(object.map(|map| Fields { map, parts: self.parts(key), source: self.source, sink: self.sink }))
    }
}

/// The values a range accepts, in words.
fn accepted_range(range: &RangeInclusive<u64>) -> String {
    format!("a whole number from {} to {}", range.start(), range.end())
}

fn whole(value: &Value, range: &RangeInclusive<u64>) -> Result<u64, Wrong> {
    // 4096.0 is what some tools write for 4096.
    let n = value.as_u64().or_else(|| value.as_f64().filter(|x| *x >= 0.0 && *x <= 2f64.powi(53) && x.fract() == 0.0).map(|x| x as u64));
    match n {
        Some(n) if range.contains(&n) => Ok(n),
        _ => Err(Wrong::new(format!("is {}", describe(value)), accepted_range(range))),
    }
}

/// A JSON value in an error message, cut to a readable length.
pub(super) fn describe(value: &Value) -> String {
    match value {
        Value::Array(list) => format!("a list of {}", list.len()),
        Value::Object(_) => "an object".into(),
        other => {
            let text = other.to_string();
            if text.chars().count() > 48 { format!("{}...", text.chars().take(45).collect::<String>()) } else { text }
        }
    }
}
