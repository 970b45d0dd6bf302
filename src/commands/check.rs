//! `moetwin check`.

use crate::error::{Failure, InputError, Outcome};
use crate::output;
use crate::report::check_log::LogReport;
use crate::report::{check_json, check_text};
use crate::resolve::{machine, model_folder, read_log, read_text};
use crate::scenario::names_release;
use crate::values::whole;
use clap::Args;
use moetwin::engines::catalog::Folder;
use moetwin::engines::hardware::{find, gpu_names, major_minor, of_machine, said_sm, says_links};
use moetwin::engines::log::{self, StartUp};
use moetwin::engines::question::{HardwareText, Question};
use moetwin::engines::verdict::{self, Answer, CheckError, Starts};
use moetwin::engines::{Engine, Version, case, command};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Arguments of `moetwin check`.
#[derive(Args)]
#[command(after_help = "\
Examples:
  moetwin check --gpu 'RTX PRO 6000 Blackwell' --gpus 8 --interconnect PCIe --engine-version 0.5.9 -- \\
      python -m sglang.launch_server --model-path moonshotai/Kimi-K2.5 --tp 8 --ep 8 --moe-a2a-backend flashinfer
  moetwin check --gpu H200 --gpus 8 -- vllm serve Qwen/Qwen3-235B-A22B-FP8 -tp 8
  moetwin check --from question.json --json
  moetwin check --log server.log --machine 8x-h200-sxm -- vllm serve deepseek-ai/DeepSeek-R1 -tp 8

Exit code 1 means that it is predicted not to start, to hang, or to fail in service; a degraded launch still is 0.")]
pub(crate) struct CheckArgs {
    /// Read the whole question from a file
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with = "command",
        long_help = "\
Read the whole question from a JSON file: framework, framework_version, model, hardware {gpu, count, memory_gib, interconnect, cuda, driver}, command, \
extra_env, model_facts; gpu and gpus may stand outside of hardware"
    )]
    from: Option<PathBuf>,
    /// Version of the engine [default: the newest known]
    #[arg(long, value_name = "V")]
    engine_version: Option<String>,
    /// The GPU, for example 'RTX PRO 6000 Blackwell' or H200
    #[arg(long, value_name = "NAME")]
    gpu: Option<String>,
    /// GPUs, all hosts together
    #[arg(long, value_name = "N", value_parser = whole::<u32>(1..=100_000))]
    gpus: Option<u32>,
    /// Links between the GPUs, in words
    #[arg(long, value_name = "WORDS")]
    interconnect: Option<String>,
    /// CUDA version
    #[arg(long, value_name = "V")]
    cuda: Option<String>,
    /// Driver version
    #[arg(long, value_name = "V")]
    driver: Option<String>,
    /// A variable of the environment, NAME=VALUE; may be repeated
    #[arg(long, value_name = "NAME=VALUE")]
    env: Vec<String>,
    /// Read a start-up log and set it beside the prediction
    #[arg(
        long,
        value_name = "FILE",
        long_help = "\
Read a start-up log of SGLang or vLLM: the phase it died in, free memory, weights, KV tokens. With a command or --from, its figures replace the predicted \
ones, and both are shown"
    )]
    log: Option<PathBuf>,
    /// A machine instead of --gpu, --gpus and --interconnect: a name from `moetwin machine list`, or a machine file
    #[arg(long, value_name = "MACHINE", conflicts_with_all = ["gpu", "interconnect"])]
    machine: Option<String>,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
    /// The launch command
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
}

/// Answers and prints.
pub(crate) fn run(args: &CheckArgs) -> Result<Outcome, Failure> {
    let log = args.log.as_ref().map(|path| start_up_log(path)).transpose()?;
    if let (Some(start), None, true) = (&log, &args.from, args.command.is_empty()) {
        return log_alone(start, args.json);
    }
    let question = question(args)?;
    let mut answer = verdict::check(&question).map_err(|e| match e {
        CheckError::Command(e) => Failure::from(InputError::new("COMMAND", e.to_string())),
        CheckError::Table(e) => Failure::Running(format!("a start-up table is faulty, a defect of moetwin: {e}")),
    })?;
    let report = log.as_ref().map(|start| {
        let pinned = log::pin(start, &mut answer.numbers);
        LogReport::new(start, &pinned, Some(&answer))
    });
    if args.json {
        output::answer_json(&check_json::json(&answer, report.as_ref()))?;
    } else {
        let beside = report.map(|r| format!("\n{}", r.text(true))).unwrap_or_default();
        output::answer(&format!("{}{beside}", check_text::text(&question, &answer)))?;
    }
    Ok(outcome(&answer))
}

/// What a log says, if an engine wrote it.
fn start_up_log(path: &Path) -> Result<StartUp, Failure> {
    let name = path.to_string_lossy().into_owned();
    let start = log::read(&read_log("--log", &name, path)?);
    if start.recognised() {
        return Ok(start);
    }
    Err(InputError::new("--log", "is no start-up log of SGLang or vLLM: no line of it is one that they print").value(name).into())
}

/// A log without a question: what it says, and whether the server came up.
fn log_alone(start: &StartUp, json: bool) -> Result<Outcome, Failure> {
    let pinned = log::pin(start, &mut BTreeMap::new());
    let report = LogReport::new(start, &pinned, None);
    if json {
        output::answer_json(&check_json::LogAnswer::new(&report))?;
    } else {
        output::answer(&report.text(false))?;
    }
    Ok(if start.error.is_some() { Outcome::No } else { Outcome::Yes })
}

fn outcome(answer: &Answer) -> Outcome {
    match answer.starts {
        Starts::Yes | Starts::Degraded => Outcome::Yes,
        Starts::No | Starts::Hang | Starts::ServeFails => Outcome::No,
    }
}

fn question(args: &CheckArgs) -> Result<Question, Failure> {
    let mut question = match &args.from {
        Some(path) => {
            let name = path.to_string_lossy().into_owned();
            let text = read_text("--from", &name, path)?;
            case::read(&text).map_err(|e| Failure::from(InputError::new("--from", e.to_string()).value(name)))?
        }
        None => pasted(args)?,
    };
    understood(args, question.engine)?;
    if let Some(version) = &args.engine_version {
        question.version = Version::parse(question.engine, version);
    }
    if let Some(name) = &args.machine {
        question.hardware = of_machine(&machine("--machine", name)?);
    }
    let hardware = &mut question.hardware;
    hardware.count = args.gpus.or(hardware.count);
    for (given, field) in [(&args.gpu, &mut hardware.gpu), (&args.interconnect, &mut hardware.interconnect)] {
        if let Some(text) = given {
            field.clone_from(text);
        }
    }
    hardware.cuda = args.cuda.clone().or(hardware.cuda.take());
    hardware.driver = args.driver.clone().or(hardware.driver.take());
    for pair in &args.env {
        let Some((name, value)) = pair.split_once('=') else {
            return Err(InputError::new("--env", "is not NAME=VALUE").value(pair).accepted(["NAME=VALUE"]).into());
        };
        question.env.insert(name.to_owned(), value.to_owned());
    }
    question.folder = folder(&question)?;
    Ok(question)
}

/// The folder that the command names as its model, where it is here and has a configuration.
fn folder(question: &Question) -> Result<Option<Folder>, Failure> {
    // A command that cannot be read is answered later, with its own words.
    let name = command::parse(&question.command, &question.version).ok().and_then(|command| command.model);
    name.map_or(Ok(None), |name| model_folder("COMMAND", &name))
}

/// Refuses flags whose words say nothing. Files describe odd machines, so there the answer only says what it could not use.
fn understood(args: &CheckArgs, engine: Engine) -> Result<(), Failure> {
    if let Some(gpu) = args.gpu.as_deref().filter(|gpu| find(gpu).is_none() && said_sm(gpu).is_none()) {
        let wrong = InputError::new("--gpu", "is not a known GPU model").value(gpu).names(gpu_names());
        return Err(wrong.accepted(gpu_names()).accepted(["or an architecture, as in 'SM120'"]).into());
    }
    let refuse = |flag: &str, value: &str, wrong: &str, accepted: &[&str]| -> Result<(), Failure> {
        Err(InputError::new(flag, wrong).value(value).accepted(accepted.iter().copied()).into())
    };
    if let Some(text) = &args.engine_version {
        names_release(engine, text)?;
    }
    if let Some(cuda) = args.cuda.as_deref().filter(|text| major_minor(text).is_none()) {
        return refuse("--cuda", cuda, "is no version of CUDA", &["13.0", "12.8", "cu130"]);
    }
    if let Some(driver) = args.driver.as_deref().filter(|text| major_minor(text).is_none()) {
        return refuse("--driver", driver, "is no version of the driver", &["580", "590.48.01"]);
    }
    if let Some(links) = args.interconnect.as_deref().filter(|text| !says_links(text)) {
        let accepted =
            ["NVLink", "NVSwitch", "NVLink bridge", "PCIe", "PCIe without NVLink", "topo PHB", "2 nodes with RDMA", "single GPU"];
        return refuse("--interconnect", links, "names no link that is known", &accepted);
    }
    Ok(())
}

fn pasted(args: &CheckArgs) -> Result<Question, Failure> {
    if args.command.is_empty() {
        return Err(InputError::new("COMMAND", "is missing").accepted(["-- and a launch command", "--from FILE"]).into());
    }
    // One argument is a whole paste, as in quotes; several were split by the shell already.
    let text = match args.command.as_slice() {
        [whole] => whole.clone(),
        words => words.iter().map(|w| quoted(w)).collect::<Vec<_>>().join(" "),
    };
    command::closed(&text).map_err(|e| Failure::from(InputError::new("COMMAND", e.to_string())))?;
    let Some(engine) = command::engine_of(&text) else {
        let accepted =
            ["python -m sglang.launch_server ..", "sglang serve ..", "vllm serve ..", "python -m vllm.entrypoints.openai.api_server .."];
        return Err(InputError::new("COMMAND", "starts neither SGLang nor vLLM").accepted(accepted).into());
    };
    Ok(Question {
        engine,
        version: Version::newest(engine),
        model: String::new(),
        hardware: HardwareText::default(),
        command: text,
        folder: None,
        env: BTreeMap::new(),
        model_facts: BTreeMap::new(),
        assumptions: Vec::new(),
    })
}

/// A word as a shell would need it.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || "-_=./:,+@%<>".contains(c);
    if !word.is_empty() && word.chars().all(plain) { word.to_owned() } else { format!("'{}'", word.replace('\'', "'\\''")) }
}
