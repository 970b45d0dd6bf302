//! Values that another command would print: `$(nvidia-smi -L | wc -l)`.

use super::{Command, CommandError};
use crate::flags::{self, Value};
use crate::question::Engine;

/// Commands whose lines or words are the GPUs of the machine.
const COUNTS_GPUS: &[&str] = &["nvidia-smi", "rocm-smi", "amd-smi", "device_count()", "/dev/nvidia"];

/// Whether a value is, or holds, what another command would print.
pub(super) fn is_one(value: &str) -> bool {
    value.contains("$(") || value.starts_with('`') && value.len() > 2 && value.ends_with('`')
}

/// Puts the machine's GPUs in the place of commands that count them, and says so. What other commands print is not known: where a number or a word of a
/// list is needed there is no answer; in text (names, addresses, keys) it decides nothing and stays.
///
/// # Errors
/// [`CommandError::Printed`], with the flag and what stands behind it.
pub(crate) fn settle(command: &mut Command, engine: Engine, gpus: Option<u32>) -> Result<Vec<String>, CommandError> {
    let mut assumed = Vec::new();
    let mut replaced = Vec::new();
    for given in &mut command.given {
        let Some(text) = given.value.clone().filter(|value| is_one(value)) else { continue };
        let decides = flags::find(engine, &given.name).is_some_and(|f| matches!(f.value, Value::Int | Value::Float | Value::Choice(_)));
        if !decides {
            continue;
        }
        let counts = COUNTS_GPUS.iter().any(|word| text.contains(word));
        match gpus.filter(|_| counts) {
            Some(gpus) => {
                assumed.push(format!("{text} behind {} prints {gpus}, the GPUs that are there", given.written));
                given.value = Some(gpus.to_string());
                replaced.push(text);
            }
            None => {
                let instead = if counts {
                    "say how many GPUs are there (--gpus, hardware.count), or write their number"
                } else {
                    "write what it prints in its place"
                };
                return Err(CommandError::Printed { flag: given.written.clone(), text, instead: instead.to_owned() });
            }
        }
    }
    command.placeholders.retain(|p| !replaced.contains(p));
    Ok(assumed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::parse;
    use crate::version::Version;

    fn settled(text: &str, gpus: Option<u32>) -> Result<(Command, Vec<String>), String> {
        let mut command = parse(text, &Version::newest(Engine::Vllm)).map_err(|e| e.to_string())?;
        let said = settle(&mut command, Engine::Vllm, gpus).map_err(|e| e.to_string())?;
        Ok((command, said))
    }

    #[test]
    fn counted_gpus_are_those_of_the_machine() {
        for text in [
            "vllm serve m -tp $(nvidia-smi -L | wc -l) --port 1",
            "vllm serve m -tp `nvidia-smi -L | wc -l` --port 1",
            "vllm serve m -tp \"$(nvidia-smi --list-gpus | wc -l)\" --port 1",
            "N=$(nvidia-smi -L | wc -l)\nvllm serve m -tp $N --port 1",
        ] {
            let (command, said) = settled(text, Some(4)).unwrap();
            assert_eq!(command.value("--tensor-parallel-size"), Some("4"), "{text}");
            assert!(said.len() == 1 && said[0].contains("nvidia-smi") && said[0].contains('4'), "{said:?}");
            assert!(command.stray.is_empty() && command.placeholders.is_empty() && command.has("--port"), "{command:?}");
        }
        let open = settled("vllm serve m -tp $(nvidia-smi -L | wc -l)", None).unwrap_err();
        assert!(open.contains("-tp") && open.contains("$(nvidia-smi -L | wc -l)") && open.contains("how many GPUs"), "{open}");
    }

    #[test]
    fn what_other_commands_print_is_named_where_it_decides() {
        let error = settled("vllm serve m -tp $(nproc)", Some(4)).unwrap_err();
        assert!(error.contains("-tp") && error.contains("$(nproc)"), "{error}");
        let (command, said) = settled("vllm serve m --host $(hostname -i) --api-key `cat key`", Some(4)).unwrap();
        assert!(said.is_empty() && command.stray.is_empty(), "{command:?}");
    }
}
