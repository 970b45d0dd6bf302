//! Laws of the start-up search and of fixes, on random tables and launches.

use moetwin_engines::question::Question;
use moetwin_engines::startup::{self, Table};
use moetwin_engines::verdict::{self, Starts};
use moetwin_engines::{Engine, HardwareText, Version};
use moetwin_runtime::init::{CheckedPlan, Conditions, Fact, Fault};
use moetwin_sim::explore::{DEFAULT_MAX_STATES, End, explore};
use proptest::prelude::*;
use std::collections::BTreeMap;

/// A legal table: step `i` writes `item_i` and reads some of the items before it. `together` marks steps that ranks do together.
#[derive(Clone, Debug)]
struct Random {
    reads: Vec<Vec<usize>>,
    together: Vec<bool>,
    ranks: u32,
}

fn random() -> impl Strategy<Value = Random> {
    (3usize..20, 1u32..9).prop_flat_map(|(steps, ranks)| {
        let reads = (0..steps).map(|i| prop::collection::vec(0..i.max(1), 0..3.min(i + 1))).collect::<Vec<_>>();
        (reads, prop::collection::vec(any::<bool>(), steps)).prop_map(move |(mut reads, together)| {
            reads[0].clear();
            Random { reads, together, ranks }
        })
    })
}

impl Random {
    /// The table as text, its steps in an order; `nothing` names a step whose write has a closed gate.
    fn text(&self, nothing: Option<usize>, order: &[usize]) -> String {
        let mut out = String::new();
        for &i in order {
            let reads: Vec<String> = self.reads[i].iter().map(|r| format!("item_{r}")).collect();
            let write = if nothing == Some(i) { format!("item_{i} if never") } else { format!("item_{i}") };
            let sync = if self.together[i] { "tp" } else { "" };
            out.push_str(&format!("S{i} | step {i} | load | target | | {} | {write} | {sync} | .. | test\n", reads.join(", ")));
        }
        out
    }
    fn plan(&self, nothing: Option<usize>) -> CheckedPlan {
        self.ordered(nothing, &(0..self.reads.len()).collect::<Vec<_>>())
    }
    fn ordered(&self, nothing: Option<usize>, order: &[usize]) -> CheckedPlan {
        // Tables are static data; a test leaks a few kilobytes.
        let text: &'static str = Box::leak(self.text(nothing, order).into_boxed_str());
        let rows = Table::read(text).expect("a table").rows_of(&Version::newest(Engine::Sglang));
        let conditions = Conditions { flags: [("never".to_owned(), false)].into(), ..Conditions::default() };
        CheckedPlan::new(startup::plan(&rows, conditions, self.ranks, &[1])).expect("a plan")
    }
    /// The first step that reads an item.
    fn first_reader(&self, item: usize) -> Option<usize> {
        self.reads.iter().position(|reads| reads.contains(&item))
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn legal_tables_are_never_flagged(table in random()) {
        let verdict = explore(&table.plan(None), DEFAULT_MAX_STATES).expect("small");
        prop_assert!(verdict.story.is_none());
    }

    #[test]
    fn a_write_that_stores_nothing_is_found_with_a_shortest_story(table in random(), step in 0usize..20) {
        let step = step % table.reads.len();
        let plan = table.plan(Some(step));
        let verdict = explore(&plan, DEFAULT_MAX_STATES).expect("small");
        match table.first_reader(step) {
            None => prop_assert!(verdict.story.is_none()),
            Some(reader) => {
                let story = verdict.story.expect("the planted fault is found");
                let missing = Fact::Named(format!("item_{step}"));
                let found = matches!(&story.end, End::Breach(b) if b.fault == Fault::Missing(missing.clone()));
                prop_assert!(found, "{:?}", story.end);
                // The reader and all that comes before it on its rank; other ranks only as far as steps done together drag them along.
                let dragged = table.together[..reader].iter().rposition(|t| *t).map_or(0, |last| last + 1);
                let shortest = reader + 1 + dragged * (table.ranks as usize - 1);
                prop_assert_eq!(story.moves.len(), shortest);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// A step that comes after one that needs it: found at the first that reads it, on as few moves as lead there.
    #[test]
    fn a_step_that_comes_too_late_is_found_with_a_shortest_story(table in random(), step in 0usize..20) {
        let step = step % table.reads.len();
        let order: Vec<usize> = (0..table.reads.len()).filter(|i| *i != step).chain([step]).collect();
        let verdict = explore(&table.ordered(None, &order), DEFAULT_MAX_STATES).expect("small");
        match order.iter().position(|i| table.reads[*i].contains(&step)) {
            None => prop_assert!(verdict.story.is_none()),
            Some(reader) => {
                let story = verdict.story.expect("the planted fault is found");
                let missing = Fact::Named(format!("item_{step}"));
                let found = matches!(&story.end, End::Breach(b) if b.fault == Fault::Missing(missing.clone()));
                prop_assert!(found, "{:?}", story.end);
                let dragged = order[..reader].iter().rposition(|i| table.together[*i]).map_or(0, |last| last + 1);
                prop_assert_eq!(story.moves.len(), reader + 1 + dragged * (table.ranks as usize - 1));
            }
        }
    }
}

/// Launches with a fault of the arguments, made from parts.
fn launch() -> impl Strategy<Value = (Engine, String)> {
    let models = prop::sample::select(vec![
        "Qwen/Qwen3-235B-A22B-FP8",
        "Qwen/Qwen3-30B-A3B-FP8",
        "deepseek-ai/DeepSeek-V3",
        "moonshotai/Kimi-K2.5",
        "MiniMaxAI/MiniMax-M2.5",
        "openai/gpt-oss-120b",
        "Qwen/Qwen3-30B-A3B-AWQ",
    ]);
    let tp = prop::sample::select(vec![1u32, 2, 3, 4, 6, 8]);
    let sglang_flags = prop::sample::subsequence(
        vec![
            "--moe-a2a-backend flashinfer",
            "--enable-dp-attention --dp-size 4",
            "--moe-dense-tp-size 2",
            "--enable-two-batch-overlap",
            "--enable-torch-symm-mem",
            "--enable-eplb",
            "--reasoning-parser glm47",
            "--mem-fraction-static 0.5",
            "--attention-backend trtllm_mha",
            "--moe-runner-backend flashinfer_trtllm",
        ],
        0..3,
    );
    let vllm_flags = prop::sample::subsequence(
        vec![
            "--enable-expert-parallel",
            "--enable-eplb",
            "--enable-dbo",
            "--gpu-memory-utilization 1.5",
            "--moe-backend deep_gemm_mega_moe",
            "--max-num-batched-tokens 16 --max-num-seqs 64",
            "--tool-call-parser qwen25",
            "--data-parallel-size 3",
        ],
        0..3,
    );
    (models, tp, any::<bool>(), sglang_flags, vllm_flags).prop_map(|(model, tp, sglang, s, v)| {
        if sglang {
            (Engine::Sglang, format!("python -m sglang.launch_server --model-path {model} --tp {tp} {}", s.join(" ")))
        } else {
            (Engine::Vllm, format!("vllm serve {model} -tp {tp} {}", v.join(" ")))
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// A fix that is called checked removes the fault when its changes are made to the question; what it leads to is what was said.
    #[test]
    fn a_checked_fix_removes_its_verdict((engine, command) in launch(), sm120 in any::<bool>()) {
        let gpu = if sm120 { "RTX PRO 6000 Blackwell (SM120)" } else { "H200" };
        let question = Question {
            engine,
            version: Version::newest(engine),
            model: String::new(),
            hardware: HardwareText { gpu: gpu.to_owned(), count: Some(8), interconnect: if sm120 { "PCIe" } else { "NVLink" }.to_owned(), ..HardwareText::default() },
            command,
            folder: None,
            env: BTreeMap::new(),
            model_facts: BTreeMap::new(),
            assumptions: Vec::new(),
        };
        let answer = verdict::check(&question).expect("a command");
        prop_assert_eq!(answer.starts == Starts::Yes, answer.invariant.is_empty());
        for fix in answer.fixes.iter().filter(|f| f.verified) {
            let again = verdict::check_with(&question, &fix.changes).expect("a command");
            prop_assert!((&again.invariant, &again.arguments) != (&answer.invariant, &answer.arguments) || again.starts != answer.starts, "{} after {}: {}", question.command, fix.text, again.message);
            prop_assert_eq!(Some(again.starts), fix.then);
        }
    }
}
