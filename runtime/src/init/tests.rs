use super::*;
use crate::program::GroupId;
use moetwin_models::RankId;
use std::sync::Arc;

/// Runs the plan round robin, always the first startable step of each rank in turn, and returns the breaches met.
fn walk(plan: InitPlan) -> (FleetState, Vec<Breach>) {
    let plan = Arc::new(CheckedPlan::new(plan).unwrap());
    let mut state = FleetState::new(plan.clone());
    let mut breaches = Vec::new();
    loop {
        let mut moved = false;
        for rank in plan.ranks() {
            let next = plan.rank(rank).steps.iter().flatten().map(|live| live.id).find(|id| state.can_start(rank, *id));
            if let Some(step) = next {
                breaches.extend(state.breaches(rank, step));
                state.advance(rank, step);
                moved = true;
            }
        }
        if !moved {
            return (state, breaches);
        }
    }
}

fn full_native() -> InitPlan {
    InitPlan::native(&NativeInputs::uniform(3, true, true, true, vec![1, 8, 4], true))
}

#[test]
fn native_plans_complete_without_a_breach() {
    for ranks in [1, 2, 8] {
        for bits in 0..16u32 {
            let on = |bit: u32| bits >> bit & 1 == 1;
            let inputs = NativeInputs::uniform(ranks, on(0), on(1), on(2), vec![1, 8], on(3));
            let (state, breaches) = walk(InitPlan::native(&inputs));
            assert_eq!(breaches, []);
            assert!(state.is_complete());
            for rank in state.ranks() {
                assert_eq!(rank.holds(&Fact::Captured(Bucket::draft(8))), on(2) && on(3));
                assert!(rank.holds(&Fact::ContextClosed));
            }
        }
    }
}

#[test]
fn a_plan_survives_its_json_form() {
    let mut plan = full_native();
    plan.conditions.flags.insert("graphs".into(), true);
    plan.state.push("recorder".into());
    let gated = InitStep::new("start recorder", InitPhase::Serve)
        .gate(Gate::All(vec![Gate::flag("graphs"), Gate::NotDraft]))
        .reads(Fact::Ready.when(Gate::negate(Gate::flag("graphs"))))
        .writes(Fact::Named("recorder".into()))
        .thread(2)
        .after(StepId(3));
    plan.push(RankId(1), gated);
    let text = plan.to_json();
    assert_eq!(CheckedPlan::from_json(&text).unwrap().plan(), &plan);
}

#[test]
fn bad_plans_are_refused_and_the_step_is_named() {
    type Mutation = fn(&mut InitPlan);
    let cases: &[(Mutation, &str)] = &[
        (|p| p.ranks[RankId(1)][2].id = StepId(7), "rank 1, step 7 `load target weights`: its id is 7 but it is number 2"),
        (|p| p.ranks[RankId(0)][3].after.push(StepId(99)), "rank 0, step 3 `set target expert metadata`: it runs after step 99"),
        (
            |p| p.ranks[RankId(0)][1].sync = Some(GroupId(5)),
            "rank 0, step 1 `join process group`: it waits for group 5, but there are 1 groups",
        ),
        (|p| p.groups[GroupId(0)].ranks = vec![RankId(0), RankId(9)], "lists rank 9, but ranks are 0 to 2"),
        (|p| p.groups[GroupId(0)].ranks = vec![RankId(0), RankId(0)], "at least one rank, each once"),
        (
            |p| p.groups[GroupId(0)].ranks = vec![RankId(0), RankId(1)],
            "rank 2, step 1 `join process group`: it waits for group 0 `world`, in which",
        ),
        (|p| p.ranks[RankId(2)][0].gate = Gate::flag("x"), "rank 2, step 0 `open context`: its gate names flag `x`"),
        (|p| p.ranks[RankId(2)][0].writes[0].gate = Gate::hook("h"), "rank 2, step 0 `open context`: its gate names hook `h`"),
        (|p| p.ranks[RankId(2)][0].writes[0].fact = Fact::Named("n".into()), "rank 2, step 0 `open context`: `n` is not among"),
        (|p| p.ranks[RankId(2)][0].writes[0].fact = Fact::Captured(Bucket::target(0)), "a bucket of batch 0 does not exist"),
        (|p| p.ranks[RankId(2)][0].thread = 16, "thread 16 is not below 16"),
        (|p| p.ranks[RankId(0)][1].after.push(StepId(2)), "rank 0, step 1 `join process group`: it can never begin"),
        (|p| p.ranks[RankId(0)][1].thread = 1, "waits for `world` on thread 0, step 1 on thread 1"),
        (|p| p.ranks = Default::default(), "it has 0 ranks"),
    ];
    for (mutate, expected) in cases {
        let mut plan = full_native();
        mutate(&mut plan);
        let error = CheckedPlan::new(plan).expect_err(expected).to_string();
        assert!(error.contains(expected), "{error}\nshould contain\n{expected}");
    }
}

#[test]
fn unreadable_files_say_where() {
    let step = r#"{"id": 0, "name": "load", "writes": [{"weight": "target"}]}"#;
    let cases = [
        ("{", "EOF while parsing an object at line 1 column 1".to_owned()),
        (r#"{"schema": 2, "ranks": [[]]}"#, "schema 2 is not the accepted 1".to_owned()),
        (r#"{"schema": 1, "ranks": [[]], "rank": 3}"#, "unknown field `rank`".to_owned()),
        (&format!(r#"{{"schema": 1, "ranks": [[], [{step}]]}}"#), "rank 1, step 0 `load`: unknown variant `weight`".to_owned()),
        (r#"{"schema": 1, "ranks": [[{"id": 0}]]}"#, "rank 0, step 0 ``: missing field `name`".to_owned()),
        (
            r#"{"schema": 1, "ranks": [[{"id": 0, "name": "a", "reads": ["kv"]}]]}"#,
            "unknown variant `kv`, expected one of `context`".to_owned(),
        ),
        (
            r#"{"schema": 1, "ranks": [[{"id": 0, "name": "a", "reads": [{"fact": "context", "gat": "always"}]}]]}"#,
            "unknown field `gat`".to_owned(),
        ),
    ];
    for (text, expected) in cases {
        let error = CheckedPlan::from_json(text).unwrap_err().to_string();
        assert!(error.contains(&expected), "{error}\nshould contain\n{expected}");
    }
}

#[test]
fn a_missing_item_is_explained_by_what_became_of_its_step() {
    let breach = |mutate: fn(&mut InitPlan)| {
        let mut plan = full_native();
        plan.conditions.model_class = "Wrapper".into();
        plan.conditions.hooks.insert("get_location".into(), false);
        mutate(&mut plan);
        let (state, breaches) = walk(plan);
        (breaches[0].invariant.name, breaches[0].in_words(state.plan()))
    };
    let metadata = 3;
    assert_eq!(full_native().ranks[RankId(0)][metadata].name, "set target expert metadata");
    let (name, words) = breach(|p| p.ranks[RankId(0)][3].writes[0].gate = Gate::hook("get_location"));
    assert_eq!(name, "expert_metadata_before_dispatch");
    assert_eq!(
        words,
        "rank 0 begins `warm up target` before the expert placement metadata of the target exists on it: \
         `set target expert metadata` runs and leaves nothing behind, since Wrapper lacks the hook `get_location`"
    );
    let (_, words) = breach(|p| p.ranks[RankId(0)][3].gate = Gate::hook("get_location"));
    assert!(words.ends_with("would bring it about but does not run, since Wrapper lacks the hook `get_location`"), "{words}");
    let (_, words) = breach(|p| p.ranks[RankId(0)][3].writes.clear());
    assert!(words.ends_with("no step of that rank brings it about"), "{words}");
}
