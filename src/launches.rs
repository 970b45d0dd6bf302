//! The rows of a sweep as the engines take them.

use crate::args::{self, AllReduceKind, DeploymentArgs, NcclGraph, Speculation, Switch, word};
use crate::error::Failure;
use crate::resolve::{Model, Place, model_folder};
use crate::sweep::{Point, Row};
use moetwin::engines::catalog::Folder;
use moetwin::engines::hardware::of_machine;
use moetwin::engines::launch::{AllReduce, GRAPH_FILE, Wanted, launch};
use moetwin::engines::{Engine, HardwareText};
use moetwin::models::{Phase, zoo};
use moetwin::sim::machine::Machine;
use serde::Serialize;
use std::num::NonZero;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The commands that launch a row, each accepted by `moetwin check` on the machine.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Launches {
    /// SGLang's.
    pub(crate) sglang: Option<String>,
    /// Why there is none, or what the engine does otherwise.
    pub(crate) sglang_note: Option<String>,
    /// vLLM's.
    pub(crate) vllm: Option<String>,
    /// As for SGLang.
    pub(crate) vllm_note: Option<String>,
}

/// The engine whose version the flags name, and the version.
fn version(args: &DeploymentArgs) -> Option<(Engine, &str)> {
    let engine = match args.engine? {
        args::Engine::Sglang => Engine::Sglang,
        args::Engine::Vllm => Engine::Vllm,
        args::Engine::Native => return None,
    };
    Some((engine, args.engine_version.as_deref()?))
}

/// What the launches of all rows have in common.
pub(crate) struct Launcher<'a> {
    name: String,
    model: &'a Model,
    folder: Option<Folder>,
    hardware: HardwareText,
    points: &'a [Point],
    rows: &'a [Row],
}

impl<'a> Launcher<'a> {
    /// Of a model that `--model` calls `name`; rows are in the order of the points.
    pub(crate) fn new(name: &str, model: &'a Model, machine: &Machine, points: &'a [Point], rows: &'a [Row]) -> Result<Self, Failure> {
        // Engines take a folder where `--model` may also be the configuration in it.
        let folder =
            || Path::new(name).parent().filter(|_| name.ends_with(".json")).map_or(name.into(), |p| p.to_string_lossy().into_owned());
        let name = zoo::find(name).map_or_else(folder, |m| m.hub_id.to_owned());
        let folder = model_folder("--model", &name)?;
        Ok(Self { name, model, folder, hardware: of_machine(machine), points, rows })
    }
    /// The launches of the rows at these places, on all cores.
    pub(crate) fn all(&self, places: &[usize]) -> Vec<Launches> {
        let next = AtomicUsize::new(0);
        let found = Mutex::new(vec![Launches::default(); places.len()]);
        let work = || {
            while let Some((i, place)) = Some(next.fetch_add(1, Ordering::Relaxed)).and_then(|i| Some((i, *places.get(i)?))) {
                let launches = self.of(place);
                found.lock().unwrap_or_else(|e| e.into_inner())[i] = launches;
            }
        };
        let threads = std::thread::available_parallelism().map_or(1, NonZero::get).min(places.len());
        std::thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(work))));
        found.into_inner().unwrap_or_else(|e| e.into_inner())
    }
    /// The launches of a row.
    pub(crate) fn of(&self, place: usize) -> Launches {
        let (sglang, sglang_note) = self.by(Engine::Sglang, place);
        let (vllm, vllm_note) = self.by(Engine::Vllm, place);
        Launches { sglang, sglang_note, vllm, vllm_note }
    }
    fn by(&self, engine: Engine, place: usize) -> (Option<String>, Option<String>) {
        match self.wanted(place).and_then(|want| launch(engine, &want, &self.hardware)) {
            Ok(launch) => {
                let differs = launch.differs.map(|why| format!("{why}{}", self.own(place)));
                let notes: Vec<String> = self.conditions(engine, place, &launch.command).into_iter().chain(differs).collect();
                (Some(launch.command), (!notes.is_empty()).then(|| notes.join("; ")))
            }
            Err(why) => (None, Some(why)),
        }
    }
    /// What a command cannot say and yet holds for it: the engine's version, and what its graph file is to hold.
    fn conditions(&self, engine: Engine, place: usize, command: &str) -> Vec<String> {
        let args = &self.points[place].args;
        let version = version(args).filter(|(whose, _)| *whose == engine);
        let version = version.map(|(_, version)| format!("for {} {version} (--engine-version)", engine.title()));
        let tuned = command.contains("NCCL_GRAPH_FILE=").then(|| {
            format!("{GRAPH_FILE} is a graph file of yours with rings tuned by hand, as --nccl-graph tuned has them; NCCL_GRAPH_DUMP_FILE writes one to begin with")
        });
        version.into_iter().chain(tuned).collect()
    }
    fn wanted(&self, place: usize) -> Result<Wanted<'_>, String> {
        let (args, row) = (&self.points[place].args, &self.rows[place]);
        let deployment = row.deployment.as_ref().ok_or("it cannot be")?;
        if args.spec.is_some_and(|s| s != Speculation::None) {
            return Err("its flags name a draft model's checkpoint, which a sweep does not know".to_owned());
        }
        if matches!(self.model.weights, Place::Shipped) {
            return Err("the model that ships is in this program and not in a form that an engine reads".to_owned());
        }
        let new = match args.phase.unwrap_or(Phase::Decode) {
            Phase::Decode => 1,
            Phase::Verify(n) => n,
            Phase::Prefill => 0,
        };
        Ok(Wanted {
            model: &self.name,
            folder: self.folder.as_ref(),
            deployment,
            batch: row.batch,
            context: args.context,
            tokens: args.context(&self.model.spec).saturating_add(new),
            positions: self.model.spec.max_positions,
            all_reduce: match args.allreduce.unwrap_or(AllReduceKind::Auto) {
                AllReduceKind::Auto | AllReduceKind::Engine => AllReduce::Own,
                AllReduceKind::Nccl => AllReduce::Nccl,
                AllReduceKind::OneShot | AllReduceKind::TwoShot => AllReduce::Peer,
            },
            graphs: args.graphs != Some(Switch::Off),
            peer_access: args.p2p != Some(Switch::Off),
            tuned_graph: args.nccl_graph == Some(NcclGraph::Tuned),
            version: version(args),
        })
    }
    /// What the same row gives with the engine's own all-reduce, where that was tried.
    fn own(&self, place: usize) -> String {
        let row = &self.rows[place];
        let flag = self.points[place].args.allreduce.map(|kind| format!(" --allreduce {}", word(kind))).unwrap_or_default();
        let flags = row.flags.replace(&flag, "");
        let other = self.rows.iter().find(|r| r.flags == flags).and_then(Row::token_ms);
        match (other, row.token_ms()) {
            (Some(own), Some(this)) if !flag.is_empty() => format!(", which takes {own:.2} ms a token and not {this:.2} ({flags})"),
            _ => String::new(),
        }
    }
}
