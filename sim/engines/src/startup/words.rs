//! What a missing item means, for people.

use super::is;
use super::table::{Row, table};
use crate::finding::{Finding, Fix, Kind, Phase};
use crate::question::Engine;
use crate::rules::Launch;
use moetwin_runtime::init::{Breach, CheckedPlan, Fact, Worker};

/// An item of the tables in words: (name, what it is, why it matters, for people).
const ITEMS: &[(&str, &str, &str)] = &[
    (
        "dispatcher_quant_config",
        "the quantization of the dispatcher (`FlashinferDispatcher.quant_config`)",
        "only ModelOpt NVFP4, FP8 and Quark MXFP4 call `set_quant_config`; dispatch then asks None for an attribute",
    ),
    (
        "rows_of_router_logits",
        "router logits for every received row",
        "the weight-only runner asserts as many rows of received hidden states (ep x local) as of router logits (local)",
    ),
    (
        "local_expert_ids",
        "a mapping of global expert ids to local experts",
        "the dispatcher has none, so global ids index the local experts, and the result is not written to the combine workspace",
    ),
    (
        "moe_tp_capture_context",
        "the moe_tp group inside the capture context",
        "replay dereferences peer handles that were never registered",
    ),
    (
        "child_gathered_buffer",
        "a gathered buffer of the child batches",
        "two-batch overlap splits the capture batch on a decode node before the buffer is attached to the children",
    ),
    (
        "set_eagle3_layers_to_capture",
        "the class hook `set_eagle3_layers_to_capture`",
        "EAGLE-3 needs the target's intermediate hidden states",
    ),
    ("get_embed_and_head", "the class hook `get_embed_and_head`", "an EAGLE draft shares the target's embedding and head"),
    ("eagle3_interface", "the EAGLE-3 interface of the model class", "the draft reads hidden states that the class does not hand out"),
    ("expert_load_view", "the expert load view of EPLB", "the first EPLB step asserts that the model is a mixture of experts it knows"),
];

fn described(fact: &Fact) -> (String, &'static str) {
    match fact {
        Fact::ExpertMetadata(Worker::Target) => (
            "the expert location metadata (`expert_location_metadata`)".to_owned(),
            "the first MoE forward pass asserts that it is not None",
        ),
        Fact::ExpertMetadata(Worker::Draft) => (
            "EPLB metadata of the draft model".to_owned(),
            "its routers inherit enable_eplb, but the draft model is never registered: target and drafter have different expert counts, and its load view stays empty",
        ),
        Fact::AllToAllBuffers => ("the all-to-all buffers".to_owned(), "dispatch writes into them"),
        Fact::Named(name) => {
            let row = ITEMS.iter().find(|(n, ..)| n == name);
            row.map_or((format!("`{name}`"), "it is used before it is made"), |(_, words, why)| ((*words).to_owned(), *why))
        }
        other => (other.to_string(), "it is used before it is made"),
    }
}

/// Conditions that are no flag of the command line, in words for people: (name, what it means that it is off).
const CONDITIONS: &[(&str, &str)] = &[
    ("quantized_dispatch", "the weights are in none of the formats that tell the dispatcher"),
    ("dispatched_router_rows", "the weight-only experts take the router's rows as they are"),
    ("two_batch_overlap", "two-batch overlap is off"),
];

/// Why a gate is closed, for people.
fn in_words(closed: &str) -> String {
    let text = closed.replace(
        "flag `moe_tp_group_left_out` holds",
        "this version enters the tensor-parallel group only, and experts are reduced in another",
    );
    CONDITIONS.iter().fold(text, |text, (name, words)| text.replace(&format!("flag `{name}` is off"), words))
}

/// The rule's name: the invariant's, or for an item of the tables the item's own.
fn invariant(breach: &Breach, fact: &Fact) -> String {
    match fact {
        Fact::Named(name) => format!("{name}_before_use"),
        _ => breach.invariant.name.to_owned(),
    }
}

/// What wrote nothing, or would have: the reason why an item is missing.
enum Writer {
    /// The step ran; the gate of its write was closed.
    StoredNothing(String, String),
    /// The step does not exist in this launch.
    Closed(String, String),
    /// Later versions have such a step.
    Later(String, String),
    /// No version has one.
    None,
}

fn writer(launch: &Launch<'_>, rows: &[Row], plan: &CheckedPlan, fact: &Fact) -> Writer {
    let conditions = &plan.plan().conditions;
    let writes = |row: &Row| row.writes.iter().find(|item| is(item, row.worker, fact)).cloned();
    for row in rows {
        let Some(item) = writes(row) else { continue };
        if let Some(why) = row.gate.why_closed(conditions, row.worker) {
            return Writer::Closed(row.name.clone(), why);
        }
        if let Some(why) = item.gate.why_closed(conditions, row.worker) {
            return Writer::StoredNothing(row.name.clone(), why);
        }
    }
    let later =
        table(launch.settings.engine).rows.iter().find(|row| writes(row).is_some() && !row.range.contains(&launch.settings.version));
    later.map_or(Writer::None, |row| Writer::Later(row.name.clone(), row.source.clone()))
}

/// A step reads what nobody made.
#[allow(clippy::too_many_arguments)]
pub(super) fn missing(
    launch: &Launch<'_>,
    rows: &[Row],
    plan: &CheckedPlan,
    breach: &Breach,
    fact: &Fact,
    step: &str,
    phase: Phase,
    states: u64,
) -> Finding {
    let (what, why) = described(fact);
    let writer = writer(launch, rows, plan, fact);
    let reason = match &writer {
        Writer::StoredNothing(name, closed) => {
            format!("the step that sets it, `{name}`, ran and stored nothing, because {}", in_words(closed))
        }
        Writer::Closed(name, closed) => format!("the step that would set it, `{name}`, does not run in this launch: {}", in_words(closed)),
        Writer::Later(name, source) => format!("this version has no step that sets it (later ones do: {name}; {source})"),
        Writer::None => "no step sets it".to_owned(),
    };
    let message = format!("`{step}` reads {what}, and it is not there: {reason}; {why}");
    let mut finding = Finding::fails(phase, Kind::MissingInit, &invariant(breach, fact), message);
    if let Writer::StoredNothing(name, _) = &writer {
        finding = finding
            .because(format!("no race: it is so in every interleaving of the ranks ({states} states visited), for `{name}` comes earlier on the same thread of each rank"))
            .because(format!("not the draft worker's gate: `{name}` ran for the target model, only its write has a closed gate"));
        if launch.settings.engine == Engine::Sglang && !launch.settings.eplb && matches!(fact, Fact::ExpertMetadata(Worker::Target)) {
            finding = finding.because(eplb_instead(rows));
        }
    }
    if *fact == Fact::Named("moe_tp_capture_context".to_owned()) {
        finding = finding.number("moe_tp_size", f64::from(launch.settings.moe_tp));
        finding.message = format!("{} (moe_tp group of size {})", finding.message, launch.settings.moe_tp);
    }
    fixes(launch, fact, finding)
}

/// What `--enable-eplb`, which people suspect to be missing, would do.
fn eplb_instead(rows: &[Row]) -> String {
    let earlier = rows.iter().find(|row| row.reads.iter().any(|item| is(item, row.worker, &Fact::ExpertMetadata(Worker::Target))));
    let name = earlier.map_or("the recorder", |row| row.name.as_str());
    format!("not a missing --enable-eplb: with it `{name}` reads the same metadata and fails earlier, before any weight is loaded")
}

/// A step makes something while a graph is being captured.
pub(super) fn in_capture(launch: &Launch<'_>, breach: &Breach, subject: &Fact, step: &str, phase: Phase) -> Finding {
    let what = match subject {
        Fact::AllToAllBuffers if launch.settings.a2a == "deepep_v2" => "the DeepEP v2 buffer".to_owned(),
        other => described(other).0,
    };
    let message = format!(
        "{what} is first constructed inside graph capture (`{step}`), on first dispatch: {}. The same construction succeeds outside capture; it is not a fault of the network's configuration",
        breach.invariant.why
    );
    let finding = Finding::fails(phase, Kind::MissingInit, breach.invariant.name, message);
    finding.fix(Fix::switch("--disable-cuda-graph")).fix(Fix::version("20260920", "pull request 39078 builds the buffer before capture"))
}

fn fixes(launch: &Launch<'_>, fact: &Fact, finding: Finding) -> Finding {
    let s = launch.settings;
    match (s.engine, fact) {
        (Engine::Sglang, Fact::ExpertMetadata(Worker::Target)) => {
            let finding = if s.eplb { finding.fix(Fix::remove("--enable-eplb")) } else { finding };
            let given = |flag: &str| s.has(flag).then(|| Fix::remove(flag));
            let none = [given("--moe-a2a-backend"), given("--enable-deepep-moe")].into_iter().flatten().next();
            let finding = none.into_iter().fold(finding, Finding::fix);
            finding.fix(Fix::version("0.5.10", "the class has the hook from there on; what fails behind it remains"))
        }
        (Engine::Sglang, Fact::Named(name)) if name == "moe_tp_capture_context" => finding
            .fix(Fix::set("--ep-size", s.tp))
            .fix(Fix::switch("--disable-custom-all-reduce"))
            .fix(Fix::version("20260402", "pull request 21907 enters the group into the capture context")),
        (Engine::Sglang, Fact::Named(name)) if name == "child_gathered_buffer" => finding
            .fix(Fix::remove("--enable-two-batch-overlap"))
            .fix(Fix::switch("--disable-cuda-graph"))
            .fix(Fix::version("0.4.9", "pull request 7616")),
        (_, Fact::Named(name)) if name.contains("eagle3") || name == "get_embed_and_head" => {
            finding.fix(Fix::remove(if s.engine == Engine::Sglang { "--speculative-algorithm" } else { "--speculative-config" }))
        }
        (Engine::Sglang, Fact::Named(_)) if s.a2a == "flashinfer" => finding.fix(Fix::remove("--moe-a2a-backend")),
        (Engine::Vllm, Fact::ExpertMetadata(Worker::Draft)) => finding
            .fix(Fix::remove("--enable-eplb"))
            .fix(Fix::remove("--speculative-config"))
            .fix(Fix::version("20260911", "pull request 56387 switches EPLB off for the draft model")),
        (Engine::Vllm, Fact::Named(name)) if name == "expert_load_view" => finding.fix(Fix::remove("--enable-eplb")),
        _ => finding,
    }
}

#[cfg(test)]
mod tests {
    use super::super::matches;
    use super::*;

    #[test]
    fn every_named_item_that_people_see_is_described() {
        for (name, words, why) in ITEMS {
            assert!(!words.is_empty() && !why.is_empty(), "{name}");
            let used = [Engine::Sglang, Engine::Vllm].into_iter().flat_map(|e| {
                let t = table(e);
                t.rows.iter().flat_map(|r| r.reads.iter().chain(&r.writes)).map(|i| i.name.clone()).collect::<Vec<_>>()
            });
            assert!(used.into_iter().any(|n| n == *name), "{name} is described and no table has it");
        }
        assert!(matches(&table(Engine::Sglang).rows[0], "set the device"));
    }
}
