//! The flags of each engine, by version.

use crate::question::Engine;
use crate::version::{Range, Version};
use std::sync::OnceLock;

/// What follows a flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value {
    /// Nothing.
    Switch,
    /// An integer.
    Int,
    /// A number.
    Float,
    /// Any text.
    Text,
    /// One word or more.
    List,
    /// Any number of words, none as well.
    Words,
    /// A JSON value.
    Json,
    /// One of these words, separated by `/`.
    Choice(&'static str),
}

/// What is known of a flag's effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The resolution or a rule reads it.
    Modelled,
    /// Accepted; nothing that is modelled depends on it.
    Known,
    /// No code of the engine reads it.
    Inert,
    /// What replaced it, for versions that no longer have it.
    Gone(&'static str),
}

/// A flag.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Flag {
    /// Canonical name with its dashes.
    pub name: &'static str,
    /// The same as the table has it: `@since..until` behind a name is for that name alone.
    spelling: &'static str,
    /// Aliases as the table has them, separated by `, `.
    aliases: &'static str,
    /// What follows it.
    pub value: Value,
    /// Versions that accept it.
    pub range: Range,
    /// Its effect.
    pub effect: Effect,
}

impl Flag {
    /// The canonical name and all aliases.
    pub fn names(&self) -> impl Iterator<Item = &'static str> + use<> {
        self.written().map(|w| w.split('@').next().unwrap_or(w))
    }

    /// Versions in which argparse takes this name for the flag: those of the flag where the table gives the name none of its own.
    pub fn range_of(&self, name: &str) -> Range {
        let own = self.written().find_map(|w| w.split_once('@').filter(|(n, _)| *n == name));
        own.and_then(|(_, versions)| versions.split_once("..")).map_or(self.range, |(since, until)| Range { since, until })
    }

    /// A name that this version takes, the canonical one before aliases.
    pub fn name_in(&self, version: &Version) -> &'static str {
        self.names().find(|n| self.range_of(n).contains(version)).unwrap_or(self.name)
    }

    /// Names as in the table, some with versions of their own behind them.
    fn written(&self) -> impl Iterator<Item = &'static str> + use<> {
        std::iter::once(self.spelling).chain(self.aliases.split(", ").filter(|a| !a.is_empty()))
    }
}

/// Flags of an engine, in the order of its table.
pub fn flags(engine: Engine) -> &'static [Flag] {
    static SGLANG: OnceLock<Vec<Flag>> = OnceLock::new();
    static VLLM: OnceLock<Vec<Flag>> = OnceLock::new();
    match engine {
        Engine::Sglang => SGLANG.get_or_init(|| read(include_str!("../../data/sglang-flags.txt"))),
        Engine::Vllm => VLLM.get_or_init(|| read(include_str!("../../data/vllm-flags.txt"))),
    }
}

/// The flag of this name or alias. Underscores count as dashes, as both engines have it.
pub fn find(engine: Engine, name: &str) -> Option<&'static Flag> {
    let dashed = name.replace('_', "-");
    flags(engine).iter().find(|flag| flag.names().any(|n| n == dashed || n == name))
}

/// The flags of which `name` is the beginning (argparse accepts an unambiguous beginning).
pub fn beginning_with(engine: Engine, name: &str, version: &Version) -> Vec<&'static Flag> {
    let dashed = name.replace('_', "-");
    let fits = |flag: &&Flag| flag.range.contains(version) && flag.names().any(|n| n.starts_with(&dashed));
    flags(engine).iter().filter(fits).collect()
}

fn read(text: &'static str) -> Vec<Flag> {
    text.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty()).map(row).collect()
}

/// A row of a table in this crate; a malformed one is our own mistake, which a test finds.
fn row(line: &'static str) -> Flag {
    let mut columns = line.splitn(4, " | ");
    let mut next = || columns.next().unwrap_or_default().trim();
    let (names, value, versions, note) = (next(), next(), next(), next());
    let (spelling, aliases) = names.split_once(", ").unwrap_or((names, ""));
    let name = spelling.split('@').next().unwrap_or(spelling);
    let (since, until) = versions.split_once("..").unwrap_or_default();
    let value = match value {
        "switch" => Value::Switch,
        "int" => Value::Int,
        "float" => Value::Float,
        "list" => Value::List,
        "list?" => Value::Words,
        "json" => Value::Json,
        words if words.contains('/') => Value::Choice(words),
        _ => Value::Text,
    };
    let effect = match note {
        "modelled" => Effect::Modelled,
        "inert" => Effect::Inert,
        other => other.strip_prefix("gone: ").map_or(Effect::Known, Effect::Gone),
    };
    Flag { name, spelling, aliases, value, range: Range { since, until }, effect }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_well_formed_and_name_each_flag_once() {
        for (engine, text) in
            [(Engine::Sglang, include_str!("../../data/sglang-flags.txt")), (Engine::Vllm, include_str!("../../data/vllm-flags.txt"))]
        {
            let mut seen = std::collections::BTreeSet::new();
            for line in text.lines().filter(|l| !l.starts_with('#') && !l.trim().is_empty()) {
                let columns: Vec<&str> = line.split(" | ").collect();
                assert_eq!(columns.len(), 4, "{line}");
                assert!(columns[2].contains(".."), "{line}");
                let note = columns[3];
                assert!(["modelled", "known", "inert"].contains(&note) || note.starts_with("gone: "), "{line}");
                assert!(
                    ["switch", "int", "float", "text", "list", "list?", "json"].contains(&columns[1]) || columns[1].contains('/'),
                    "{line}"
                );
                for name in columns[0].split(", ") {
                    let (name, versions) = name.split_once('@').unwrap_or((name, ".."));
                    assert!(name.starts_with('-') && seen.insert(name.to_owned()), "{name} in {line}");
                    assert!(versions.contains(".."), "{line}");
                }
            }
            assert_eq!(flags(engine).iter().flat_map(Flag::names).count(), seen.len());
        }
    }

    /// A name that argparse takes only up to some release is another matter than a flag that went.
    #[test]
    fn a_name_may_have_versions_of_its_own() {
        let flag = find(Engine::Sglang, "--cuda-graph-max-bs").unwrap();
        let version = |text: &str| Version::parse(Engine::Sglang, text);
        let takes = |name: &str, at: &str| flag.range_of(name).contains(&version(at));
        assert!(takes("--cuda-graph-max-bs", "0.5.19") && !takes("--cuda-graph-max-bs", "0.5.20"));
        assert!(takes("--cuda-graph-max-bs-decode", "0.5.20") && !takes("--cuda-graph-max-bs-decode", "0.5.13"));
        assert_eq!(
            (flag.name_in(&version("0.5.9")), flag.name_in(&version("0.5.23"))),
            ("--cuda-graph-max-bs", "--cuda-graph-max-bs-decode")
        );
        let plain = find(Engine::Sglang, "--tp").unwrap();
        assert_eq!(plain.range_of("--tp"), plain.range);
    }
}
