//! The GPUs that a container is given.

use super::words::Word;

/// How many GPUs a container is given by `--gpus` or, without it, by `NVIDIA_VISIBLE_DEVICES`, among the words in front of the engine; `None` where
/// that is all of them, or is not said. The last one counts.
///
/// Docker's forms of `--gpus`: `2`, `all`, `device=0,1` in quotes of its own, `"device=0,1",capabilities=utility`, `count=2`, and devices by UUID.
pub(super) fn gpus(front: &[Word]) -> Option<u32> {
    let mut last = None;
    let mut variable = None;
    let mut container = false;
    for (i, word) in front.iter().enumerate() {
        let value = match word.text.strip_prefix("--gpus") {
            Some("") => front.get(i + 1).map(|w| w.text.as_str()),
            Some(rest) => rest.strip_prefix('='),
            None => None,
        };
        last = value.map(given).or(last);
        container |= matches!(word.text.rsplit('/').next(), Some("docker" | "podman" | "nerdctl"));
        let before = i.checked_sub(1).map_or("", |before| front[before].text.as_str());
        variable = set_for_container(before, &word.text).filter(|_| container).or(variable);
    }
    // `--gpus` sets the variable itself, whatever else does.
    last.unwrap_or_else(|| variable.and_then(visible))
}

/// `NVIDIA_VISIBLE_DEVICES` as a word (behind another one) sets it for a container: `-e NAME=value`, `--env NAME=value` and both glued.
fn set_for_container<'a>(before: &str, word: &'a str) -> Option<&'a str> {
    let glued = word.strip_prefix("--env=").or_else(|| word.strip_prefix("-e"));
    let set = glued.or_else(|| matches!(before, "-e" | "--env").then_some(word))?;
    set.strip_prefix(VISIBLE)?.strip_prefix('=')
}

/// What NVIDIA's container runtime reads where no devices are asked for.
pub(super) const VISIBLE: &str = "NVIDIA_VISIBLE_DEVICES";

/// How many GPUs a value of `NVIDIA_VISIBLE_DEVICES` gives a container: a list of indices or UUIDs, `all`, or none at all by `none` and `void`.
/// `None` for all, and for what is not known. Source: NVIDIA Container Toolkit, "Specialized Configurations with Docker".
pub(super) fn visible(value: &str) -> Option<u32> {
    if super::is_placeholder(value) {
        return None;
    }
    match value.trim() {
        "all" => None,
        "" | "none" | "void" => Some(0),
        list => u32::try_from(list.split(',').filter(|device| !device.trim().is_empty()).count()).ok(),
    }
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
            ("docker run --runtime nvidia -e NVIDIA_VISIBLE_DEVICES=0,1 i", Some(2)),
            ("podman run --env=NVIDIA_VISIBLE_DEVICES=GPU-3a i", Some(1)),
            ("docker run -e NVIDIA_VISIBLE_DEVICES=0 -e NVIDIA_VISIBLE_DEVICES=0,1,2 i", Some(3)),
            ("docker run --env NVIDIA_VISIBLE_DEVICES=all i", None),
            ("docker run -e NVIDIA_VISIBLE_DEVICES=none i", Some(0)),
            ("docker run -e NVIDIA_VISIBLE_DEVICES=$LIST i", None),
            // Docker sets the variable itself for what --gpus asks.
            ("docker run -e NVIDIA_VISIBLE_DEVICES=0,1 --gpus all i", None),
            ("docker run --gpus 3 -e NVIDIA_VISIBLE_DEVICES=0,1 i", Some(3)),
            // Nothing reads it where no container is made, nor in front of what makes one.
            ("NVIDIA_VISIBLE_DEVICES=0,1 vllm", None),
            ("NVIDIA_VISIBLE_DEVICES=0,1 docker run i", None),
        ] {
            assert_eq!(self::gpus(&split(text).unwrap()), gpus, "{text}");
        }
    }
}
