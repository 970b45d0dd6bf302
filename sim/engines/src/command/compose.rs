//! Commands inside Compose files and pod manifests: `image:`, `environment:`, `command:`, `args:`.

use super::container;
use super::words::{Unclosed, Word, split};
use std::ops::Range;

/// The words of a manifest in the order in which a shell would have had them: variables, image, entry point, command. `None` where no line is a
/// `command:`, `args:` or `entrypoint:`.
///
/// # Errors
/// A quote that is never closed.
pub(super) fn words(text: &str) -> Result<Option<Vec<Word>>, Unclosed> {
    let lines = lines(text);
    if !lines.iter().any(|line| matches!(key(line.text), Some(("command" | "args" | "entrypoint", _)))) {
        return Ok(None);
    }
    let mut out = Manifest::default();
    let mut reserves = false;
    for (i, line) in lines.iter().enumerate() {
        if let Some(n) = line.text.strip_prefix("nvidia.com/gpu:") {
            out.gpus = bare(n).parse().ok().or(out.gpus);
        }
        let Some((key, value)) = key(line.text) else { continue };
        let value_at = line.at + line.text.len() - value.len();
        let here = Block { text, lines: &lines[i + 1..], indent: line.indent };
        reserves |= matches!(key, "devices" | "gpus");
        match key {
            // One of several services of a file may reserve GPUs; the server does.
            "devices" => out.gpus = here.reserved().or(out.gpus),
            "gpus" if !value.is_empty() => out.gpus = bare(value).parse().ok(),
            "image" => out.image.push(unquoted(value, value_at)),
            "environment" | "env" => out.variables.extend(here.variables()),
            "entrypoint" => out.entry.extend(here.command(value, value_at)?),
            "command" | "args" => out.command.extend(here.command(value, value_at)?),
            _ => {}
        }
    }
    let Manifest { variables, image, entry, command, gpus } = out;
    let visible = |word: &Word| word.text.strip_prefix(container::VISIBLE)?.strip_prefix('=').and_then(container::visible);
    // What is reserved outranks the variable of NVIDIA's runtime.
    let gpus = gpus.or_else(|| variables.iter().rev().find_map(visible).filter(|_| !reserves));
    // As `docker run` would have it.
    let gpus = gpus.map(|n| Word { text: format!("--gpus={n}"), span: 0..0, quoted: false });
    Ok(Some([gpus.into_iter().collect(), variables, image, entry, command].concat()))
}

#[derive(Default)]
struct Manifest {
    variables: Vec<Word>,
    image: Vec<Word>,
    entry: Vec<Word>,
    command: Vec<Word>,
    /// GPUs that are reserved.
    gpus: Option<u32>,
}

/// A line without its indentation; the dash of a list counts as indentation where a key follows it.
struct Line<'a> {
    indent: usize,
    text: &'a str,
    at: usize,
}

fn lines(text: &str) -> Vec<Line<'_>> {
    let mut out = Vec::new();
    let mut at = 0;
    for raw in text.split_inclusive('\n') {
        let line = raw.trim_end();
        let mut trimmed = line.trim_start();
        if let Some(rest) = trimmed.strip_prefix("- ").filter(|rest| key(rest.trim_start()).is_some()) {
            trimmed = rest.trim_start();
        }
        if !trimmed.is_empty() && !trimmed.starts_with('#') {
            let indent = line.len() - trimmed.len();
            out.push(Line { indent, text: trimmed, at: at + indent });
        }
        at += raw.len();
    }
    out
}

/// `key: value` of a mapping; flags and paths are none.
fn key(line: &str) -> Option<(&str, &str)> {
    let (key, value) = line.split_once(':')?;
    let plain =
        !key.is_empty() && key.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') && (value.is_empty() || value.starts_with(' '));
    plain.then(|| (key, value.trim_start()))
}

/// What stands below a key.
struct Block<'a> {
    text: &'a str,
    lines: &'a [Line<'a>],
    indent: usize,
}

impl<'a> Block<'a> {
    /// The lines that belong to the key: deeper ones, and items of a list at its own depth.
    fn below(&self) -> impl Iterator<Item = &'a Line<'a>> + use<'a> {
        let indent = self.indent;
        self.lines.iter().take_while(move |line| line.indent > indent || line.indent == indent && line.text.starts_with("- "))
    }

    /// GPUs below `devices:` of a reservation: `count: 2` or the `device_ids`; `None` for all, and for devices that are no GPUs.
    fn reserved(&self) -> Option<u32> {
        let lines: Vec<&Line<'_>> = self.below().collect();
        if !lines.iter().any(|line| line.text.contains("gpu") || line.text.contains("nvidia")) {
            return None;
        }
        let mut last = None;
        for (i, line) in lines.iter().enumerate() {
            match key(line.text) {
                Some(("count", value)) => last = bare(value).parse().ok(),
                Some(("device_ids", value)) => {
                    let here = Block { text: self.text, lines: &self.lines[i + 1..], indent: line.indent };
                    let at = line.at + line.text.len() - value.len();
                    let ids = if value.starts_with('[') {
                        flow(&self.text[at..], at).len()
                    } else {
                        here.below().filter(|l| l.text.starts_with("- ")).count()
                    };
                    last = u32::try_from(ids).ok().filter(|n| *n > 0);
                }
                _ => {}
            }
        }
        last
    }

    fn variables(&self) -> Vec<Word> {
        let mut out: Vec<Word> = Vec::new();
        let mut name: Option<String> = None;
        for line in self.below() {
            let item = line.text.strip_prefix("- ").unwrap_or(line.text);
            let span = line.at..line.at + line.text.len();
            let word = |text: String| Word { text, span: span.clone(), quoted: false };
            match key(item) {
                Some(("name", value)) => name = Some(bare(value).to_owned()),
                Some(("value", value)) => out.extend(name.take().map(|name| word(format!("{name}={}", bare(value))))),
                Some((key, value)) => out.push(word(format!("{key}={}", bare(value)))),
                None => out.push(word(bare(item).to_owned())),
            }
        }
        out
    }

    fn command(&self, value: &str, at: usize) -> Result<Vec<Word>, Unclosed> {
        if value.starts_with('[') {
            return Ok(flow(&self.text[at..], at));
        }
        let is_block = value.starts_with(['>', '|']);
        let list = value.is_empty() && self.below().next().is_some_and(|line| line.text.starts_with("- "));
        if list {
            return self.items();
        }
        let from = if is_block || value.is_empty() { self.below().next().map_or(at, |line| line.at) } else { at };
        let end = self.below().last().map_or(at + value.len(), |line| line.at + line.text.len());
        if is_block && self.below().next().is_none() {
            return Ok(Vec::new());
        }
        shell(self.text, from..end.max(from))
    }

    /// `- word` items; one with blanks in it is taken as the words that were meant, a block as a script.
    fn items(&self) -> Result<Vec<Word>, Unclosed> {
        let mut out = Vec::new();
        let below: Vec<&Line<'_>> = self.below().collect();
        for (i, line) in below.iter().enumerate() {
            let Some(item) = line.text.strip_prefix("- ").map(str::trim_start) else { continue };
            let at = line.at + line.text.len() - item.len();
            if item.starts_with(['|', '>']) {
                let script: Vec<&&Line<'_>> = below[i + 1..].iter().take_while(|l| l.indent > line.indent).collect();
                if let (Some(first), Some(last)) = (script.first(), script.last()) {
                    out.extend(shell(self.text, first.at..last.at + last.text.len())?);
                }
            } else if item.starts_with(['"', '\'']) {
                out.push(unquoted(item, at));
            } else {
                out.extend(shell(self.text, at..at + item.len())?);
            }
        }
        Ok(out)
    }
}

fn shell(text: &str, range: Range<usize>) -> Result<Vec<Word>, Unclosed> {
    let start = range.start;
    let shifted = |w: Word| Word { span: w.span.start + start..w.span.end + start, ..w };
    match split(&text[range]) {
        Ok(words) => Ok(words.into_iter().map(shifted).collect()),
        Err(e) => Err(Unclosed { at: e.at + start, ..e }),
    }
}

/// Items of `["a", 'b', c]`, up to the bracket that closes it or the end.
fn flow(text: &str, at: usize) -> Vec<Word> {
    let mut out = Vec::new();
    let mut item: Option<(usize, String)> = None;
    let mut mark: Option<char> = None;
    let mut escaped = false;
    for (i, c) in text.char_indices().skip(1) {
        match (mark, c) {
            (Some('"'), '\\') if !escaped => {
                escaped = true;
                continue;
            }
            (Some(open), _) if c == open && !escaped => mark = None,
            (None, '"' | '\'') => {
                mark = Some(c);
                item.get_or_insert((i, String::new()));
            }
            (None, ',' | ']') => {
                out.extend(item.take().map(|(from, word)| Word {
                    text: word.trim_end().to_owned(),
                    span: at + from..at + i,
                    quoted: false,
                }));
                if c == ']' {
                    break;
                }
            }
            (None, _) if c.is_whitespace() && item.is_none() => {}
            _ => item.get_or_insert((i, String::new())).1.push(c),
        }
        escaped = false;
    }
    out
}

/// A scalar without the quotes around it.
fn bare(value: &str) -> &str {
    let value = value.trim();
    let inner = value.strip_prefix('"').and_then(|v| v.strip_suffix('"'));
    inner.or_else(|| value.strip_prefix('\'').and_then(|v| v.strip_suffix('\''))).unwrap_or(value)
}

fn unquoted(value: &str, at: usize) -> Word {
    Word { text: bare(value).to_owned(), span: at..at + value.len(), quoted: false }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(text: &str) -> Vec<String> {
        words(text).unwrap().expect("a manifest").into_iter().map(|w| w.text).collect()
    }

    #[test]
    fn compose_files_become_words() {
        let block = "services:\n  llm:\n    image: vllm/vllm-openai:v0.11.0\n    environment:\n      - NCCL_P2P_DISABLE=1\n      - \"A=b\"\n    command: >\n      --model m\n      -tp 2\n    ports:\n      - \"8000:8000\"\n";
        assert_eq!(texts(block), ["NCCL_P2P_DISABLE=1", "A=b", "vllm/vllm-openai:v0.11.0", "--model", "m", "-tp", "2"]);
        let list = "  image: lmsysorg/sglang:latest\n  entrypoint: python3 -m sglang.launch_server\n  command:\n    - --model-path\n    - m\n    - --tp=8\n    - '--json-model-override-args'\n    - '{\"a\": 1}'\n  environment:\n    HF_HOME: /x\n";
        assert_eq!(
            texts(list),
            [
                "HF_HOME=/x",
                "lmsysorg/sglang:latest",
                "python3",
                "-m",
                "sglang.launch_server",
                "--model-path",
                "m",
                "--tp=8",
                "--json-model-override-args",
                "{\"a\": 1}"
            ]
        );
        let plain = "command: --model m\n  --max-model-len 4096\n";
        assert_eq!(texts(plain), ["--model", "m", "--max-model-len", "4096"]);
        assert_eq!(words("vllm serve m --x y"), Ok(None));
    }

    #[test]
    fn reserved_gpus_are_those_of_the_container() {
        let of = |devices: &str| {
            let text = format!(
                "services:\n  llm:\n    image: vllm/vllm-openai:v0.11.0\n    command: --model m\n    deploy:\n      resources:\n        reservations:\n          devices:\n{devices}"
            );
            texts(&text).into_iter().find_map(|w| w.strip_prefix("--gpus=").map(str::to_owned))
        };
        let two = Some("2".to_owned());
        assert_eq!(of("            - driver: nvidia\n              count: 2\n              capabilities: [gpu]\n"), two);
        assert_eq!(of("            - driver: nvidia\n              device_ids: ['0', \"3\"]\n              capabilities: [gpu]\n"), two);
        assert_eq!(
            of(
                "            - capabilities: [gpu]\n              device_ids:\n                - \"0\"\n                - '1'\n              driver: nvidia\n"
            ),
            two
        );
        assert_eq!(of("            - driver: nvidia\n              count: all\n              capabilities: [gpu]\n"), None);
        assert_eq!(of("            - driver: tpu\n              count: 2\n"), None);
        let runtime = "services:\n  llm:\n    image: vllm/vllm-openai:v0.11.0\n    runtime: nvidia\n    environment:\n      NVIDIA_VISIBLE_DEVICES: \"1,3\"\n    command: --model m\n";
        assert_eq!(texts(runtime)[0], "--gpus=2");
        let all = runtime.replace("    runtime: nvidia\n", "    gpus: all\n");
        assert!(!texts(&all)[0].starts_with("--gpus"), "{:?}", texts(&all));
        let pod =
            "containers:\n- image: vllm/vllm-openai:v0.11.0\n  args: [\"m\"]\n  resources:\n    limits:\n      nvidia.com/gpu: \"2\"\n";
        assert_eq!(texts(pod)[0], "--gpus=2");
    }

    #[test]
    fn pod_manifests_become_words() {
        let pod = "containers:\n- name: vllm\n  image: vllm/vllm-openai:v0.11.0\n  command: [\"vllm\", \"serve\"]\n  args: [\"m\", '--kv-transfer-config={\"kv_role\":\"kv_both\"}',\n    \"-tp\", \"8\"]\n  env:\n  - name: A\n    value: \"1\"\n";
        assert_eq!(
            texts(pod),
            ["A=1", "vllm/vllm-openai:v0.11.0", "vllm", "serve", "m", "--kv-transfer-config={\"kv_role\":\"kv_both\"}", "-tp", "8"]
        );
        let script = "  command: [\"/bin/sh\", \"-c\"]\n  args:\n  - |\n    vllm serve m \\\n      -tp 4\n";
        assert_eq!(texts(script), ["/bin/sh", "-c", "vllm", "serve", "m", "-tp", "4"]);
    }

    #[test]
    fn spans_point_into_the_manifest() {
        let text = "image: x\ncommand: [\"vllm\", \"serve\", \"m\", \"-tp\", \"3\"]\n";
        let words = words(text).unwrap().unwrap();
        assert_eq!(&text[words.last().unwrap().span.clone()], "\"3\"");
    }

    proptest::proptest! {
        /// Whatever the text, nothing panics and spans lie inside it, on characters' bounds.
        #[test]
        fn any_manifest_is_read(text in "((command|args|image|environment|env|entrypoint): ?|[ \\-\n]{1,3}|['\"\\[\\],>|$é]|name: |[a-z]{1,4}){0,40}") {
            if let Ok(Some(words)) = words(&text) {
                for word in words {
                    proptest::prop_assert!(text.get(word.span.clone()).is_some(), "{:?}", word);
                }
            }
        }
    }
}
