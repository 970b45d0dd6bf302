//! What holds of every schedule, and a few that can be told by hand.

use super::*;
use proptest::prelude::*;
use std::convert::Infallible;

/// A step of 10 ms, 1 ms for each decoding request, 1 ms for 100 tokens of prompt; counts what it was asked.
#[derive(Default)]
struct Linear {
    decoded: u64,
    prompt_tokens: u64,
    most_new: u32,
}

impl StepTimes for Linear {
    type Error = Infallible;
    fn time(&mut self, s: &StepShape) -> Result<Duration, Infallible> {
        self.decoded += u64::from(s.decoding);
        self.prompt_tokens += u64::from(s.prompt_tokens);
        self.most_new = self.most_new.max(s.prompt_tokens);
        Ok(Duration::from_us(10_000 + 1_000 * u64::from(s.decoding) + 10 * u64::from(s.prompt_tokens)))
    }
}

fn policy(batching: Batching) -> Policy {
    Policy { max_running: 4, kv_tokens: 10_000, budget_tokens: 512, batching, millitokens_per_step: 1000 }
}

fn request(arrival_ms: u64, prompt: u32, output: u32) -> Request {
    Request { arrival: Time::from_ps(arrival_ms * 1_000_000_000), prompt, output }
}

fn ms(d: Duration) -> f64 {
    d.as_ms()
}

#[test]
fn one_request_waits_for_its_prompt_and_then_for_each_token() {
    for batching in [Batching::PromptsFirst, Batching::Mixed] {
        let mut times = Linear::default();
        let out = serve(&[request(5, 1000, 11)], Load::Open, &policy(batching), &mut times).unwrap();
        let s = out.served[0];
        // Two parts of 512 and 488 tokens, then ten steps with one request.
        assert_eq!(ms(s.ttft()), 10.0 + 5.12 + 10.0 + 4.88);
        assert_eq!(s.tpot().map(ms), Some(11.0));
        assert_eq!((out.steps, out.prompt_steps, out.kv_most_tokens), (12, 2, 1010));
        assert_eq!(ms(out.idle), 5.0);
        assert_eq!(Summary::of(&out).idle_share, 0.0, "nothing was late");
    }
}

#[test]
fn a_prompt_delays_the_others_by_its_step_or_by_its_part_of_theirs() {
    let requests = [request(0, 100, 50), request(100, 1000, 2)];
    let tpot = |batching| {
        let out = serve(&requests, Load::Open, &policy(batching), &mut Linear::default()).unwrap();
        ms(out.served.iter().find(|s| s.output == 50).unwrap().tpot().unwrap())
    };
    // Prompts first: two whole steps of 15.12 and 14.88 ms come between; mixed, only their tokens' 10 ms do. Both decode once together.
    let close = |a: f64, b: f64| (a - b).abs() < 1e-6;
    assert!(close(tpot(Batching::PromptsFirst), (49.0 * 11.0 + 30.0 + 1.0) / 49.0), "{}", tpot(Batching::PromptsFirst));
    assert!(close(tpot(Batching::Mixed), (49.0 * 11.0 + 10.0 + 1.0) / 49.0), "{}", tpot(Batching::Mixed));
}

#[test]
fn what_no_pool_can_hold_is_refused_and_what_runs_out_is_computed_anew() {
    let tight = Policy { kv_tokens: 300, ..policy(Batching::Mixed) };
    let requests = [request(0, 100, 100), request(0, 100, 100), request(0, 300, 1)];
    let mut times = Linear::default();
    let out = serve(&requests, Load::Open, &tight, &mut times).unwrap();
    assert_eq!(out.refused, [2]);
    assert_eq!(out.served.len(), 2);
    assert!(out.preemptions > 0 && out.kv_most_tokens <= 300, "{out:?}");
    assert!(times.prompt_tokens > 200, "{}", times.prompt_tokens);
}

#[test]
fn users_who_wait_for_answers_are_never_more_than_they_are() {
    let requests: Vec<Request> = (0..20).map(|_| request(0, 64, 8)).collect();
    let out = serve(&requests, Load::Closed { users: 3 }, &policy(Batching::Mixed), &mut Linear::default()).unwrap();
    assert_eq!((out.served.len(), out.running_most, out.waiting_most), (20, 3, 0));
}

#[test]
fn drafted_tokens_shorten_answers() {
    let twice = Policy { millitokens_per_step: 2000, ..policy(Batching::Mixed) };
    let out = serve(&[request(0, 100, 11)], Load::Open, &twice, &mut Linear::default()).unwrap();
    assert_eq!((out.steps, out.served[0].tpot().map(ms)), (6, Some(5.5)));
}

#[test]
fn a_policy_of_nothing_and_requests_of_nothing_are_errors() {
    let error = |p: Policy, r: Request| match serve(&[r], Load::Open, &p, &mut Linear::default()).unwrap_err() {
        ServingError::Unservable(why) => why.to_string(),
        ServingError::Time(never) => match never {},
    };
    let p = policy(Batching::Mixed);
    assert_eq!(error(Policy { max_running: 0, ..p }, request(0, 1, 1)), "max_running is 0: nothing could ever run");
    assert!(error(p, request(0, 0, 1)).contains("request 0"));
}

#[test]
fn percentiles_are_values_that_occurred() {
    let p = Percentiles::of((1..=200).rev().map(Duration::from_us).collect()).unwrap();
    assert_eq!((p.p50, p.p90, p.p99, p.max), (0.1, 0.18, 0.198, 0.2));
    assert_eq!(Percentiles::of(vec![]), None);
}

prop_compose! {
    fn requests()(gaps in prop::collection::vec((0u64..200, 1u32..900, 1u32..60), 1..40)) -> Vec<Request> {
        let mut at = 0;
        gaps.into_iter().map(|(gap, prompt, output)| { at += gap; request(at, prompt, output) }).collect()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn every_request_is_answered_once_within_memory(
        requests in requests(), users in prop::option::of(1u32..9), mixed: bool, max_running in 1u32..9, kv_tokens in 64u64..2000, budget in 16u32..600,
    ) {
        let batching = if mixed { Batching::Mixed } else { Batching::PromptsFirst };
        let policy = Policy { max_running, kv_tokens, budget_tokens: budget, batching, millitokens_per_step: 1000 };
        let load = users.map_or(Load::Open, |users| Load::Closed { users });
        let mut times = Linear::default();
        let out = serve(&requests, load, &policy, &mut times).unwrap();
        prop_assert_eq!(out.served.len() + out.refused.len(), requests.len());
        prop_assert!(out.kv_most_tokens <= kv_tokens && out.running_most <= max_running && times.most_new <= budget);
        if let Some(users) = users {
            prop_assert!(out.running_most <= users);
        }
        for i in &out.refused {
            prop_assert!(u64::from(requests[*i].prompt + requests[*i].output) > kv_tokens);
        }
        for s in &out.served {
            prop_assert!(s.arrival <= s.started && s.started < s.first_token && s.first_token <= s.finished && s.finished <= out.end);
        }
        // Every token behind the first costs its request one step; prompts are computed once, and again only after a preemption.
        let tokens: u64 = out.served.iter().map(|s| u64::from(s.output) - 1).sum();
        prop_assert_eq!(times.decoded, tokens);
        let prompts: u64 = out.served.iter().map(|s| u64::from(s.prompt)).sum();
        let anew = times.prompt_tokens > prompts;
        prop_assert!(times.prompt_tokens >= prompts && anew == (out.preemptions > 0));
        // The same question, the same answer.
        prop_assert_eq!(serve(&requests, load, &policy, &mut Linear::default()).unwrap(), out);
    }
}
