//! The GPUs that a container is given.

use super::words::Word;

/// How many GPUs `--gpus` gives a container among the words in front of the engine; `None` where that is all of them, or is not said. The last one
/// counts.
///
/// Docker's forms: `2`, `all`, `device=0,1` in quotes of its own, `"device=0,1",capabilities=utility`, `count=2`, and devices by UUID.
pub(super) fn gpus(front: &[Word]) -> Option<u32> {
    let mut last = None;
    for (i, word) in front.iter().enumerate() {
        let value = match word.text.strip_prefix("--gpus") {
            Some("") => front.get(i + 1).map(|w| w.text.as_str()),
            Some(rest) => rest.strip_prefix('='),
            None => None,
        };
        last = value.map(given).or(last);
    }
    last.flatten()
}

/// The count in a value of `--gpus`.
fn given(value: &str) -> Option<u32> {
    if let Some((_, devices)) = value.split_once("device=") {
        let devices = devices.split('"').next().unwrap_or_default();
        // Without quotes around it, a further key follows the devices in the same list.
        let named = devices.split(',').map(str::trim).take_while(|d| !d.contains('=')).filter(|d| !d.is_empty());
        let names: Vec<&str> = named.collect();
        return (!names.is_empty() && !names.contains(&"all")).then(|| u32::try_from(names.len()).unwrap_or(u32::MAX));
    }
    let count = value.split(',').find_map(|part| part.trim_matches('"').strip_prefix("count=")).unwrap_or(value);
    count.trim_matches('"').parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::split;

    #[test]
    fn dockers_forms_are_counted() {
        for (text, gpus) in [
            ("docker run --gpus 2 i", Some(2)),
            ("docker run --gpus=3 i", Some(3)),
            ("docker run --gpus all i", None),
            ("docker run --gpus -1 i", None),
            ("docker run --gpus '\"device=0,1\"' i", Some(2)),
            ("docker run --gpus device=2 i", Some(1)),
            ("docker run --gpus '\"device=0,1,3\",capabilities=utility' i", Some(3)),
            ("docker run --gpus device=GPU-3a,capabilities=utility i", Some(1)),
            ("docker run --gpus '\"device=all\"' i", None),
            ("docker run --gpus '\"count=2\",\"capabilities=gpu\"' i", Some(2)),
            ("docker run --gpus $N i", None),
            ("docker run i", None),
        ] {
            assert_eq!(self::gpus(&split(text).unwrap()), gpus, "{text}");
        }
    }
}
