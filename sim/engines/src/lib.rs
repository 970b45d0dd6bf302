//! What SGLang and vLLM would do with a launch command: their flags, defaults, rules, memory policy and start-up steps, as tables.
//!
//! The way of a question: [`question`] says what is asked, [`model`] and [`hardware`] say what is known of model and machine,
//! [`settings`] is the launch after all defaults and rewrites, [`memory`] counts bytes, and every fault found is a [`finding`].

pub mod backends;
pub mod case;
pub mod catalog;
pub mod command;
pub mod finding;
pub mod flags;
pub mod hardware;
pub mod launch;
pub mod log;
pub mod memory;
pub mod model;
pub mod pace;
pub mod parsers;
pub mod provenance;
pub mod question;
pub mod resolve;
pub mod rules;
pub mod settings;
pub mod startup;
pub mod verdict;
pub mod version;

pub use finding::{Change, Finding, Fix, Kind, Numbers, Outcome, Phase};
pub use model::{AttentionKind, Model, WeightScheme};
pub use question::{Engine, HardwareText, Question};
pub use settings::{Graphs, Settings, Speculative};
pub use version::{Range, Version};
