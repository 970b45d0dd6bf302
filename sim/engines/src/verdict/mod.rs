//! From a question to an answer.

mod answer;
mod change;
mod toolkit;

pub use answer::{Answer, Behind, CheckedFix, Starts};
pub use toolkit::Toolkit;

use crate::catalog;
use crate::command::{self, Command, CommandError};
use crate::finding::{Change, Finding, Numbers, Outcome, Phase};
use crate::hardware::{self, Hardware};
use crate::memory;
use crate::model::Model;
use crate::pace;
use crate::question::{Engine, Question};
use crate::resolve;
use crate::rules::{self, Launch};
use crate::settings::Settings;
use crate::startup;
use crate::version::Version;
use moetwin_runtime::init::PlanError;

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CheckError {
    /// The command cannot be read.
    #[error(transparent)]
    Command(#[from] CommandError),
    /// A start-up table makes no plan: a defect of the tables.
    #[error("start-up table: {0}")]
    Table(#[from] PlanError),
}

/// A launch looked at from all sides.
#[derive(Clone, Debug)]
pub struct Examined {
    /// The launch after defaults and rewrites.
    pub settings: Settings,
    /// The model.
    pub model: Model,
    /// The machine.
    pub hardware: Hardware,
    /// Every fault, in the order in which the engine would meet them.
    pub findings: Vec<Finding>,
    /// Figures.
    pub numbers: Numbers,
    /// What the search of the start-up covered.
    pub search: startup::Search,
    /// The memory ledger.
    pub memory: memory::Answer,
}

/// Answers a question: faults in order, the first one told as a story, and changes that were tried and remove it.
///
/// # Errors
/// A command that cannot be read.
pub fn check(question: &Question) -> Result<Answer, CheckError> {
    let (question, command) = settled(question)?;
    answered(&question, &command)
}

/// Answers a question after changes were made to it: what a fix leads to.
///
/// # Errors
/// As [`check`].
pub fn check_with(question: &Question, changes: &[Change]) -> Result<Answer, CheckError> {
    let (question, command) = settled(question)?;
    let (question, command) = change::apply(&question, &command, changes);
    answered(&question, &command)
}

fn answered(question: &Question, command: &Command) -> Result<Answer, CheckError> {
    let examined = examine(question, command)?;
    let cuda = toolkit::whatif(question, command, examined.hardware.sm, examined.hardware.cuda)?;
    Ok(answer::compose(question, command, examined, cuda))
}

/// Whether an image's tag says anything of version or toolkit.
fn says(tag: &str) -> bool {
    let image = command::image(tag);
    image.version.is_some() || image.cuda.is_some()
}

/// The question with what the image's tag says, where nothing else does, and the command read for that version.
fn settled(question: &Question) -> Result<(Question, Command), CheckError> {
    let mut question = question.clone();
    let mut command = command::parse(&question.command, &question.version)?;
    if let Some(image) = command.image_tag.as_deref().map(command::image) {
        if question.hardware.cuda.is_none() {
            question.hardware.cuda = image.cuda;
        }
        if let Some(version) = image.version.filter(|_| question.version.assumed) {
            question.version = Version::parse(question.engine, &version);
            command = command::parse(&question.command, &question.version)?;
        }
    }
    let gpus = command.gpus.or(hardware::read(&question.hardware).count);
    let printed = command::settle(&mut command, question.engine, gpus)?;
    question.assumptions.extend(printed);
    Ok((question, command))
}

/// Everything that is found about a launch.
///
/// # Errors
/// A defective table.
pub fn examine(question: &Question, command: &Command) -> Result<Examined, CheckError> {
    let hardware = hardware::read(&question.hardware);
    let quantization = command.value("--quantization");
    let named = command.model.as_deref().unwrap_or_default();
    let model = match question.folder.as_ref().filter(|folder| folder.name == named) {
        Some(folder) => catalog::of_folder(folder, &question.model_facts, quantization),
        None => catalog::resolve(named, &question.model, &question.model_facts, quantization),
    };
    let (settings, mut findings) = resolve::resolve(command, &question.env, &question.version, &model, &hardware);
    findings.splice(0..0, resolve::argument_findings(command, &question.version, hardware.count));
    if command.model.is_none() && question.model.trim().is_empty() && question.model_facts.is_empty() {
        findings.extend(resolve::model_findings(command, question.version.engine));
    }
    let launch = Launch { command, settings: &settings, model: &model, hardware: &hardware };
    findings.extend(rules::broken(&launch));
    let search = startup::search(&launch)?;
    findings.extend(search.findings.iter().cloned());
    let memory = memory::answer(&settings, &model, &hardware);
    findings.extend(memory.findings.iter().cloned());
    let engine = question.version.engine;
    // Stable: within a phase the order of the tables remains.
    findings.sort_by_key(|finding| (class(finding.outcome), place(engine, finding.phase)));
    let mut numbers = memory.numbers.clone();
    numbers.extend(pace::numbers(&settings, &model, &hardware));
    Ok(Examined { settings, model, hardware, findings, numbers, search, memory })
}

/// What prevents a start comes before what spoils the service.
fn class(outcome: Outcome) -> u8 {
    match outcome {
        Outcome::Fails | Outcome::Hangs => 0,
        Outcome::ServeFails => 1,
        Outcome::Degraded => 2,
        Outcome::Note => 3,
    }
}

/// Where a phase stands in an engine's start-up: vLLM profiles before it sizes the pool.
fn place(engine: Engine, phase: Phase) -> u8 {
    match (engine, phase) {
        (_, Phase::Parse) => 0,
        (_, Phase::Init) => 1,
        (_, Phase::Load) => 2,
        (Engine::Vllm, Phase::Warmup) => 3,
        (_, Phase::KvAlloc) => 4,
        (_, Phase::GraphCapture) => 5,
        (Engine::Sglang, Phase::Warmup) => 6,
        (_, Phase::Serve) => 7,
    }
}
