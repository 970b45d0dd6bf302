//! Questions as files.

use crate::command;
use crate::question::{Engine, HardwareText, Question};
use crate::version::Version;
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// What is wrong with a case file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CaseError {
    /// It is not JSON.
    #[error("line {line}, column {column}: {problem}")]
    Syntax {
        /// Counted from 1.
        line: usize,
        /// Counted from 1.
        column: usize,
        /// What the parser says.
        problem: String,
    },
    /// A field is missing or of the wrong type.
    #[error("`{field}`: {problem} (accepted: {accepted})")]
    Field {
        /// Where.
        field: String,
        /// What is wrong.
        problem: String,
        /// What would be right.
        accepted: String,
    },
}

fn field(field: &str, problem: impl Into<String>, accepted: impl Into<String>) -> CaseError {
    CaseError::Field { field: field.to_owned(), problem: problem.into(), accepted: accepted.into() }
}

/// Reads a question: `framework`, `framework_version`, `model`, `hardware`, `command`, `extra_env`, `model_facts`. Other fields are left alone, which
/// the question's assumptions say.
///
/// # Errors
/// See [`CaseError`].
pub fn read(text: &str) -> Result<Question, CaseError> {
    let value: Value = serde_json::from_str(text).map_err(|e| CaseError::Syntax {
        line: e.line(),
        column: e.column(),
        problem: e.to_string().split(" at line").next().unwrap_or_default().to_owned(),
    })?;
    let Value::Object(root) = value else { return Err(field("the file", "is not an object", "a JSON object")) };
    let command = string(&root, "command")?.ok_or_else(|| field("command", "is missing", "a launch command"))?;
    let engine = engine(&root, &command)?;
    let version = string(&root, "framework_version")?.unwrap_or_default();
    resembling(&root)?;
    let unknown = |name: &&String| !FIELDS.contains(&name.as_str());
    let left_alone = |name: &String| format!("the field `{name}` of the file is not known, and decides nothing");
    Ok(Question {
        engine,
        version: Version::parse(engine, &version),
        model: string(&root, "model")?.unwrap_or_default(),
        hardware: hardware(&root)?,
        command,
        folder: None,
        env: env(&root)?,
        model_facts: facts(&root)?,
        assumptions: root.keys().filter(unknown).map(left_alone).collect(),
    })
}

/// Fields of a file. `gpu` and `gpus` stand for hardware.gpu and hardware.count, as the flags of the command line are called.
const FIELDS: &[&str] =
    &["framework", "framework_version", "model", "hardware", "command", "extra_env", "environment", "model_facts", "gpu", "gpus"];

/// Refuses a field that is one or two letters off a known one: left alone, it would decide nothing although it was meant to.
fn resembling(root: &Map<String, Value>) -> Result<(), CaseError> {
    for name in root.keys().filter(|name| !FIELDS.contains(&name.as_str())) {
        let off = |known: &str| command::distance(&name.to_lowercase().replace('-', "_"), known);
        // A name of three letters is one letter off too many words.
        let near = FIELDS.iter().filter(|known| known.len() > 3).map(|known| (off(known), known)).min();
        if let Some((_, known)) = near.filter(|(off, known)| *off <= known.len() / 4) {
            return Err(field(name, format!("is not a field; the nearest is `{known}`"), FIELDS.join(", ")));
        }
    }
    Ok(())
}

/// The engine: what the file says and what the command starts must be one.
fn engine(root: &Map<String, Value>, command: &str) -> Result<Engine, CaseError> {
    let started = command::engine_of(command);
    if started.is_none() {
        command::closed(command).map_err(|e| field("command", e.to_string(), "a command whose quotes are closed"))?;
    }
    let said = framework(root, started)?;
    match started {
        Some(started) if started != said => Err(field(
            "framework",
            format!("is {}, and the command starts {}", said.name(), started.title()),
            format!("{}, or a command of {}", started.name(), said.title()),
        )),
        _ => Ok(said),
    }
}

fn framework(root: &Map<String, Value>, started: Option<Engine>) -> Result<Engine, CaseError> {
    let accepted = "sglang, vllm, or a command that starts one of them";
    match string(root, "framework")? {
        Some(name) => match name.to_lowercase().split([' ', '-', '_', ':']).next() {
            Some("sglang") => Ok(Engine::Sglang),
            Some("vllm") => Ok(Engine::Vllm),
            _ => Err(field("framework", format!("{name} is not modelled"), accepted)),
        },
        None => started.ok_or_else(|| field("framework", "is missing, and the command starts no known engine", accepted)),
    }
}

fn string(object: &Map<String, Value>, name: &str) -> Result<Option<String>, CaseError> {
    match object.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(Value::Number(n)) => Ok(Some(n.to_string())),
        Some(other) => Err(field(name, format!("is {}", kind(other)), "a string")),
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

fn object<'a>(root: &'a Map<String, Value>, name: &str) -> Result<Option<&'a Map<String, Value>>, CaseError> {
    match root.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Object(map)) => Ok(Some(map)),
        Some(other) => Err(field(name, format!("is {}", kind(other)), "an object")),
    }
}

fn hardware(root: &Map<String, Value>) -> Result<HardwareText, CaseError> {
    let empty = Map::new();
    let map = object(root, "hardware")?.unwrap_or(&empty);
    let count = gpus(map, "count", "hardware.count")?.or(gpus(root, "gpus", "gpus")?);
    let memory_gib = match map.get("memory_gib") {
        None | Some(Value::Null) => None,
        Some(v) => Some(
            v.as_f64()
                .filter(|n| n.is_finite() && (0.1..=100_000.0).contains(n))
                .ok_or_else(|| field("hardware.memory_gib", format!("is {v}"), "a number of GiB"))?,
        ),
    };
    let known = ["gpu", "count", "memory_gib", "interconnect", "cuda", "driver"];
    Ok(HardwareText {
        gpu: string(map, "gpu")?.or(string(root, "gpu")?).unwrap_or_default(),
        count,
        memory_gib,
        interconnect: string(map, "interconnect")?.unwrap_or_default(),
        cuda: string(map, "cuda")?,
        driver: string(map, "driver")?,
        other: map.iter().filter(|(k, _)| !known.contains(&k.as_str())).map(|(k, v)| (k.clone(), v.clone())).collect(),
    })
}

fn gpus(object: &Map<String, Value>, name: &str, place: &str) -> Result<Option<u32>, CaseError> {
    let Some(value) = object.get(name).filter(|v| !v.is_null()) else { return Ok(None) };
    let count = value.as_u64().and_then(|n| u32::try_from(n).ok()).filter(|n| (1..=100_000).contains(n));
    count.map(Some).ok_or_else(|| field(place, format!("is {value}"), "1 to 100000"))
}

fn env(root: &Map<String, Value>) -> Result<BTreeMap<String, String>, CaseError> {
    let name = if root.contains_key("extra_env") { "extra_env" } else { "environment" };
    let Some(map) = object(root, name)? else { return Ok(BTreeMap::new()) };
    let one = |(key, value): (&String, &Value)| match value {
        Value::String(text) => Ok((key.clone(), text.clone())),
        Value::Number(n) => Ok((key.clone(), n.to_string())),
        Value::Bool(b) => Ok((key.clone(), if *b { "1" } else { "0" }.to_owned())),
        other => Err(field(&format!("{name}.{key}"), format!("is {}", kind(other)), "a string")),
    };
    map.iter().map(one).collect()
}

fn facts(root: &Map<String, Value>) -> Result<BTreeMap<String, Value>, CaseError> {
    Ok(object(root, "model_facts")?.map(|map| map.iter().map(|(k, v)| (k.clone(), v.clone())).collect()).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_name_the_place_and_what_is_accepted() {
        let wrong = |text: &str| read(text).unwrap_err().to_string();
        assert_eq!(wrong("{"), "line 1, column 1: EOF while parsing an object");
        assert!(wrong("{\"command\": 1.5e3, \"framework\": \"x\"}").starts_with("`framework`: x is not modelled (accepted: sglang, vllm"));
        assert!(wrong("{\"command\": \"vllm serve m\", \"hardware\": {\"count\": -1}}").starts_with("`hardware.count`: is -1"));
        let q = read("{\"command\": \"vllm serve m\"}").unwrap();
        assert!(q.engine == Engine::Vllm && q.version.assumed && q.assumptions.is_empty());
        let two = wrong("{\"command\": \"vllm serve x\", \"framework\": \"sglang\"}");
        assert!(two.contains("is sglang") && two.contains("starts vLLM"), "{two}");
        let odd = read("{\"command\": \"vllm serve m\", \"colour\": 8}").unwrap();
        assert!(odd.assumptions.iter().any(|a| a.contains("`colour`")), "{:?}", odd.assumptions);
    }

    #[test]
    fn the_command_lines_names_are_taken_and_slips_are_not() {
        let q = read(r#"{"command": "vllm serve m", "gpu": "H200", "gpus": 4}"#).unwrap();
        assert_eq!((q.hardware.gpu.as_str(), q.hardware.count, q.assumptions.len()), ("H200", Some(4), 0));
        let both = read(r#"{"command": "vllm serve m", "gpu": "H200", "gpus": 4, "hardware": {"gpu": "B200", "count": 8}}"#).unwrap();
        assert_eq!((both.hardware.gpu.as_str(), both.hardware.count), ("B200", Some(8)));
        for (text, near) in
            [(r#"{"command": "vllm serve m", "hardwear": {}}"#, "`hardware`"), (r#"{"command": "vllm serve m", "models": "x"}"#, "`model`")]
        {
            let error = read(text).unwrap_err().to_string();
            assert!(error.contains(near) && error.contains("accepted: framework"), "{error}");
        }
        assert!(read(r#"{"command": "vllm serve m", "gpus": 0}"#).unwrap_err().to_string().starts_with("`gpus`: is 0"));
    }
}
