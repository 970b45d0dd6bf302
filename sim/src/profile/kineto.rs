//! Chrome traces of torch's profiler (Kineto): `{"traceEvents": [...]}`, or the list alone. Only what ran on GPUs is kept, so a trace of
//! hundreds of megabytes, most of it Python frames, needs little memory.

use super::{Content, Kernel, MOST_KERNELS, Names, Profile, ProfileError, Source, wrong};
use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Value;
use std::borrow::Cow;
use std::fmt;

/// Categories of what runs on a GPU, in the spelling of all versions.
const ON_GPU: [&str; 6] = ["kernel", "Kernel", "gpu_memcpy", "Memcpy", "gpu_memset", "Memset"];

#[derive(serde::Deserialize)]
struct Top {
    #[serde(rename = "traceEvents")]
    events: Option<Events>,
    #[serde(rename = "otherData", default)]
    other: Value,
    #[serde(rename = "deviceProperties", default)]
    devices: Value,
}

/// A value of any kind of which only numbers and words count.
#[derive(Default, serde::Deserialize)]
#[serde(untagged)]
enum Word {
    Number(f64),
    Text(String),
    Other(IgnoredAny),
    #[default]
    Missing,
}

impl Word {
    fn number(&self) -> Option<f64> {
        match self {
            Word::Number(n) => Some(*n),
            Word::Text(text) => text.parse().ok(),
            _ => None,
        }
        .filter(|n: &f64| n.is_finite())
    }
    fn index(&self) -> Option<u64> {
        self.number().filter(|n| (0.0..1e15).contains(n)).map(|n| n as u64)
    }
}

#[derive(serde::Deserialize)]
struct Event {
    #[serde(default)]
    name: Word,
    #[serde(default)]
    cat: Word,
    #[serde(default)]
    ph: Word,
    #[serde(default)]
    ts: Word,
    #[serde(default)]
    dur: Word,
    #[serde(default)]
    pid: Word,
    #[serde(default)]
    tid: Word,
    #[serde(default)]
    args: Args,
}

#[derive(Default)]
struct Args {
    device: Option<u64>,
    stream: Option<u64>,
}

impl<'de> Deserialize<'de> for Args {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        /// Arguments hold Python stacks and shapes: they are passed over, not kept.
        struct Two;
        impl<'de> Visitor<'de> for Two {
            type Value = Args;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("arguments of an event")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Args, A::Error> {
                let mut out = Args::default();
                while let Some(key) = map.next_key::<Cow<'de, str>>()? {
                    match key.as_ref() {
                        "device" => out.device = map.next_value::<Word>()?.index(),
                        "stream" => out.stream = map.next_value::<Word>()?.index(),
                        _ => {
                            map.next_value::<IgnoredAny>()?;
                        }
                    }
                }
                Ok(out)
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Args, A::Error> {
                while list.next_element::<IgnoredAny>()?.is_some() {}
                Ok(Args::default())
            }
            fn visit_unit<E>(self) -> Result<Args, E> {
                Ok(Args::default())
            }
            fn visit_str<E>(self, _: &str) -> Result<Args, E> {
                Ok(Args::default())
            }
            fn visit_f64<E>(self, _: f64) -> Result<Args, E> {
                Ok(Args::default())
            }
            fn visit_u64<E>(self, _: u64) -> Result<Args, E> {
                Ok(Args::default())
            }
            fn visit_i64<E>(self, _: i64) -> Result<Args, E> {
                Ok(Args::default())
            }
            fn visit_bool<E>(self, _: bool) -> Result<Args, E> {
                Ok(Args::default())
            }
        }
        deserializer.deserialize_any(Two)
    }
}

/// A kernel whose time is not yet counted from the first one.
struct Raw {
    name: u32,
    device: u32,
    stream: u64,
    ts_us: f64,
    dur_us: f64,
}

#[derive(Default)]
struct Events {
    names: Names,
    kernels: Vec<Raw>,
    seen: u64,
    /// The first event on a GPU without the fields of one.
    broken: Option<u64>,
}

impl Events {
    fn add(&mut self, event: &Event) {
        let index = self.seen;
        self.seen += 1;
        let Word::Text(category) = &event.cat else { return };
        let complete = matches!(&event.ph, Word::Text(ph) if ph == "X");
        if !complete || !ON_GPU.contains(&category.as_str()) {
            return;
        }
        let (Word::Text(name), Some(ts_us), Some(dur_us)) = (&event.name, event.ts.number(), event.dur.number()) else {
            self.broken.get_or_insert(index);
            return;
        };
        if dur_us < 0.0 {
            self.broken.get_or_insert(index);
            return;
        }
        let device = event.args.device.or(event.pid.index()).and_then(|d| u32::try_from(d).ok()).unwrap_or(0);
        let stream = event.args.stream.or(event.tid.index()).unwrap_or(0);
        self.kernels.push(Raw { name: self.names.of(name), device, stream, ts_us, dur_us });
    }
}

impl<'de> Deserialize<'de> for Events {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct List;
        impl<'de> Visitor<'de> for List {
            type Value = Events;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of trace events")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Events, A::Error> {
                let mut events = Events::default();
                while let Some(event) = list.next_element::<Event>()? {
                    if events.kernels.len() >= MOST_KERNELS {
                        return Err(serde::de::Error::custom(format!("more than {MOST_KERNELS} kernels")));
                    }
                    events.add(&event);
                }
                Ok(events)
            }
        }
        deserializer.deserialize_seq(List)
    }
}

pub(super) fn read(bytes: &[u8]) -> Result<Profile, ProfileError> {
    // A byte order mark is no JSON.
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    let list = bytes.iter().find(|b| !b.is_ascii_whitespace()) == Some(&b'[');
    let parsed = if list {
        serde_json::from_slice::<Events>(bytes).map(|events| Top { events: Some(events), other: Value::Null, devices: Value::Null })
    } else {
        serde_json::from_slice::<Top>(bytes)
    };
    let top = parsed.map_err(|e| {
        let place = format!("line {}, column {}", e.line(), e.column());
        if e.is_eof() { ProfileError::Truncated(format!("the JSON stops at {place}")) } else { wrong(place, e.to_string()) }
    })?;
    let Some(events) = top.events else { return Err(ProfileError::Unknown("JSON without \"traceEvents\"")) };
    if top.other["origin"].is_string() {
        return Err(ProfileError::Ours);
    }
    if let Some(index) = events.broken {
        return Err(wrong(format!("traceEvents[{index}]"), "an event of a GPU without name, ts and dur (numbers, microseconds)"));
    }
    if events.kernels.is_empty() {
        return Err(ProfileError::NoKernels(
            "was the profiler told to record CUDA (ProfilerActivity.CUDA), and did it stop after the steps?",
        ));
    }
    let gpus = top.devices.as_array().into_iter().flatten().filter_map(|d| d["name"].as_str().map(str::to_owned)).collect();
    let first = events.kernels.iter().map(|k| k.ts_us).fold(f64::INFINITY, f64::min);
    let ps = |us: f64| libm::rint(us.min(1e12) * 1e6) as u64;
    let kernel =
        |k: &Raw| Kernel { name: k.name, device: k.device, stream: k.stream, start_ps: ps(k.ts_us - first), duration_ps: ps(k.dur_us) };
    let kernels = events.kernels.iter().map(kernel).collect();
    Ok(Profile { source: Source::Kineto, gpus: unique(gpus), names: events.names.list(), content: Content::Timed(kernels) })
}

/// Each once, in order of its first place.
pub(super) fn unique(all: Vec<String>) -> Vec<String> {
    let mut out: Vec<String> = Vec::new();
    for one in all {
        if !out.contains(&one) {
            out.push(one);
        }
    }
    out
}
