//! What SGLang and vLLM would do with a launch command: their flags, defaults, rules, memory policy and start-up steps, as tables.
//!
//! The way of a question: [`question`] says what is asked, [`model`] and [`hardware`] say what is known of model and machine,
//! [`settings`] is the launch after all defaults and rewrites, [`memory`] counts bytes, and every fault found is a [`finding`].

pub mod catalog;
pub mod finding;
pub mod hardware;
pub mod log;
pub mod memory;
pub mod model;
pub mod pace;
pub mod question;
pub mod settings;
pub mod version;

pub use finding::{Change, Finding, Fix, Kind, Numbers, Outcome, Phase};
pub use model::{AttentionKind, Model, WeightScheme};
pub use question::{Engine, HardwareText, Question};
pub use settings::{Graphs, Settings, Speculative};
pub use version::{Range, Version};
