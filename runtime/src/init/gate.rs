//! Under which conditions a step, a read or a write exists.

use super::fact::Worker;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What gates are evaluated against: one launch of one model on one kind of GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Conditions {
    /// Switches of the launch, by name. A gate may only name flags listed here.
    #[serde(default)]
    pub flags: BTreeMap<String, bool>,
    /// Hooks (methods) that the outermost model class may have, and whether it does. A gate may only name hooks listed here.
    #[serde(default)]
    pub hooks: BTreeMap<String, bool>,
    /// Outermost model class, for example `KimiK25ForConditionalGeneration`.
    #[serde(default)]
    pub model_class: String,
    /// GPU architecture, for example `sm_120`.
    #[serde(default)]
    pub architecture: String,
}

/// A condition.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Gate {
    /// Holds.
    #[default]
    Always,
    /// A switch of the launch is on.
    Flag(String),
    /// The outermost model class has this hook.
    Hook(String),
    /// The outermost model class is this one.
    ModelClass(String),
    /// The GPU architecture is this one.
    Architecture(String),
    /// The step does not belong to a draft worker.
    NotDraft,
    /// The inner condition does not hold.
    Not(Box<Gate>),
    /// All hold; true when empty.
    All(Vec<Gate>),
    /// At least one holds; false when empty.
    Any(Vec<Gate>),
}

impl Gate {
    /// The flag `name` is on.
    pub fn flag(name: impl Into<String>) -> Self {
        Gate::Flag(name.into())
    }
    /// The model class has the hook `name`.
    pub fn hook(name: impl Into<String>) -> Self {
        Gate::Hook(name.into())
    }
    /// The inner condition does not hold.
    pub fn negate(inner: Gate) -> Self {
        Gate::Not(Box::new(inner))
    }
    /// Whether the gate is the trivial one.
    pub fn is_always(&self) -> bool {
        *self == Gate::Always
    }
    /// Whether the condition holds for a step of `worker`. A name that `conditions` does not list counts as false;
    /// [`Gate::unknown_name`] finds those first.
    pub fn holds(&self, conditions: &Conditions, worker: Worker) -> bool {
        match self {
            Gate::Always => true,
            Gate::Flag(name) => conditions.flags.get(name) == Some(&true),
            Gate::Hook(name) => conditions.hooks.get(name) == Some(&true),
            Gate::ModelClass(name) => conditions.model_class == *name,
            Gate::Architecture(name) => conditions.architecture == *name,
            Gate::NotDraft => worker != Worker::Draft,
            Gate::Not(inner) => !inner.holds(conditions, worker),
            Gate::All(inner) => inner.iter().all(|gate| gate.holds(conditions, worker)),
            Gate::Any(inner) => inner.iter().any(|gate| gate.holds(conditions, worker)),
        }
    }
    /// The first flag or hook that `conditions` does not list, in words.
    pub fn unknown_name(&self, conditions: &Conditions) -> Option<String> {
        match self {
            Gate::Flag(name) if !conditions.flags.contains_key(name) => Some(format!("flag `{name}`")),
            Gate::Hook(name) if !conditions.hooks.contains_key(name) => Some(format!("hook `{name}`")),
            Gate::Not(inner) => inner.unknown_name(conditions),
            Gate::All(inner) | Gate::Any(inner) => inner.iter().find_map(|gate| gate.unknown_name(conditions)),
            _ => None,
        }
    }
    /// Why the condition does not hold, in words; `None` if it does.
    pub fn why_closed(&self, conditions: &Conditions, worker: Worker) -> Option<String> {
        if self.holds(conditions, worker) {
            return None;
        }
        let list = |gates: &[Gate], separator: &str| {
            gates.iter().filter_map(|gate| gate.why_closed(conditions, worker)).collect::<Vec<_>>().join(separator)
        };
        Some(match self {
            Gate::Always => return None,
            Gate::Flag(name) => format!("flag `{name}` is off"),
            Gate::Hook(name) if conditions.model_class.is_empty() => format!("the model class lacks the hook `{name}`"),
            Gate::Hook(name) => format!("{} lacks the hook `{name}`", conditions.model_class),
            Gate::ModelClass(name) => format!("the model class is {} and not {name}", or_unknown(&conditions.model_class)),
            Gate::Architecture(name) => format!("the GPU architecture is {} and not {name}", or_unknown(&conditions.architecture)),
            Gate::NotDraft => "it belongs to the draft worker".to_owned(),
            Gate::Not(inner) => format!("{inner} holds"),
            Gate::All(inner) => list(inner, " and "),
            Gate::Any(inner) if inner.is_empty() => "nothing enables it".to_owned(),
            Gate::Any(inner) => list(inner, " and "),
        })
    }
}

fn or_unknown(name: &str) -> &str {
    if name.is_empty() { "unknown" } else { name }
}

impl std::fmt::Display for Gate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let list = |f: &mut std::fmt::Formatter<'_>, gates: &[Gate], word: &str, empty: &str| {
            if gates.is_empty() {
                return f.write_str(empty);
            }
            f.write_str("(")?;
            for (i, gate) in gates.iter().enumerate() {
                if i > 0 {
                    write!(f, " {word} ")?;
                }
                write!(f, "{gate}")?;
            }
            f.write_str(")")
        };
        match self {
            Gate::Always => f.write_str("always"),
            Gate::Flag(name) => write!(f, "flag `{name}`"),
            Gate::Hook(name) => write!(f, "hook `{name}`"),
            Gate::ModelClass(name) => write!(f, "model class {name}"),
            Gate::Architecture(name) => write!(f, "architecture {name}"),
            Gate::NotDraft => f.write_str("not a draft worker"),
            Gate::Not(inner) => write!(f, "not {inner}"),
            Gate::All(inner) => list(f, inner, "and", "always"),
            Gate::Any(inner) => list(f, inner, "or", "never"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn conditions() -> Conditions {
        Conditions {
            flags: [("graphs".to_owned(), true), ("eplb".to_owned(), false)].into(),
            hooks: [("get_location".to_owned(), false)].into(),
            model_class: "Wrapper".to_owned(),
            architecture: "sm_120".to_owned(),
        }
    }

    #[test]
    fn a_closed_gate_says_which_condition_closed_it() {
        let c = conditions();
        let why = |gate: &Gate| gate.why_closed(&c, Worker::Target);
        assert_eq!(why(&Gate::flag("graphs")), None);
        assert_eq!(why(&Gate::flag("eplb")).unwrap(), "flag `eplb` is off");
        assert_eq!(why(&Gate::hook("get_location")).unwrap(), "Wrapper lacks the hook `get_location`");
        let both = Gate::All(vec![Gate::flag("graphs"), Gate::flag("eplb"), Gate::negate(Gate::Architecture("sm_120".into()))]);
        assert_eq!(why(&both).unwrap(), "flag `eplb` is off and architecture sm_120 holds");
        assert_eq!(why(&Gate::Any(vec![])).unwrap(), "nothing enables it");
        assert_eq!(Gate::NotDraft.why_closed(&c, Worker::Draft).unwrap(), "it belongs to the draft worker");
        assert_eq!(why(&Gate::NotDraft), None);
    }

    #[test]
    fn names_that_the_conditions_do_not_list_are_found_at_any_depth() {
        let gate = Gate::Any(vec![Gate::flag("graphs"), Gate::negate(Gate::All(vec![Gate::hook("nope")]))]);
        assert_eq!(gate.unknown_name(&conditions()).unwrap(), "hook `nope`");
        assert_eq!(gate.to_string(), "(flag `graphs` or not (hook `nope`))");
        assert_eq!(Gate::Architecture("any".into()).unknown_name(&conditions()), None);
    }
}
