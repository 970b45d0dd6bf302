//! `moetwin sim --requests`: users instead of one step.

mod capacity;
mod times;

use crate::args::{DeploymentArgs, Engine};
use crate::error::{Failure, InputError, Outcome};
use crate::output;
use crate::report::requests as report;
use crate::resolve;
use crate::scenario::Scenario;
use crate::values::{each_once, real, whole};
use clap::{Args, ValueEnum};
use moetwin::models::{Phase, Step};
use moetwin::sim::import::requests as trace;
use moetwin::sim::serving::{self, Batching, Lengths, Load, Outcome as Served, Policy, Request, Summary};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::str::FromStr;

pub(crate) use capacity::Capacity;

/// Requests that run at once unless told otherwise: vLLM's default of `--max-num-seqs` on large GPUs.
const DEFAULT_MAX_RUNNING: u32 = 256;
/// New tokens of a step unless told otherwise: the default of both engines on GPUs of 80 GB and more.
const DEFAULT_BUDGET: u32 = 8192;
/// Made-up requests a load.
const DEFAULT_COUNT: u32 = 256;

/// Flags that speak of requests.
#[derive(Args, Clone, Debug)]
pub(crate) struct RequestArgs {
    /// Serve requests instead of one step: a trace, open:RATE or closed:USERS
    #[arg(
        long,
        value_name = "FILE|open:R,..|closed:N,..",
        help_heading = "Requests",
        long_help = "\
Serve requests by continuous batching instead of one step. `open:R` lets R made-up requests a second come, `closed:N` lets N users ask one after \
the other; several loads are compared, as in `closed:1,8,64`. A file is a trace of arrivals and lengths: comma-separated with the columns \
arrival_s, prompt_tokens, output_tokens, or one that Azure, Vidur or Mooncake published"
    )]
    pub(crate) requests: Option<RequestSource>,
    /// Made-up requests a load
    #[arg(long, requires = "requests", value_name = "N", default_value_t = DEFAULT_COUNT, value_parser = whole::<u32>(1..=1_000_000), help_heading = "Requests")]
    pub(crate) request_count: u32,
    /// Tokens of a made-up prompt, or a range that each is drawn from
    #[arg(long, requires = "requests", value_name = "N|N-N", default_value = "1024", value_parser = range, help_heading = "Requests")]
    pub(crate) prompt_tokens: RangeInclusive<u32>,
    /// Tokens of a made-up answer, or a range
    #[arg(long, requires = "requests", value_name = "N|N-N", default_value = "256", value_parser = range, help_heading = "Requests")]
    pub(crate) output_tokens: RangeInclusive<u32>,
    /// Requests that run at once at most (--max-running-requests, --max-num-seqs)
    #[arg(long, requires = "requests", value_name = "N", default_value_t = DEFAULT_MAX_RUNNING, value_parser = whole::<u32>(1..=65_536), help_heading = "Requests")]
    pub(crate) max_running: u32,
    /// New tokens of a step at most (--chunked-prefill-size, --max-num-batched-tokens)
    #[arg(long, requires = "requests", value_name = "N", default_value_t = DEFAULT_BUDGET, value_parser = whole::<u32>(16..=1_048_576), help_heading = "Requests")]
    pub(crate) step_tokens: u32,
    /// Who shares a step
    #[arg(
        long,
        requires = "requests",
        value_enum,
        value_name = "KIND",
        help_heading = "Requests",
        long_help = "\
Who shares a step: `prompts-first` computes prompts that wait in steps of their own before anyone decodes (SGLang), `mixed` decodes in every step and \
fills it up with prompts (vLLM) [default: as the engine does; prompts-first for this program's own runtime]"
    )]
    pub(crate) batching: Option<BatchingKind>,
    /// Time to the first token that counts as good, milliseconds
    #[arg(long, requires = "requests", value_name = "MS", value_parser = milliseconds(), help_heading = "Requests", allow_hyphen_values = true)]
    pub(crate) slo_ttft_ms: Option<f64>,
    /// Time between tokens that counts as good, milliseconds
    #[arg(long, requires = "requests", value_name = "MS", value_parser = milliseconds(), help_heading = "Requests", allow_hyphen_values = true)]
    pub(crate) slo_tpot_ms: Option<f64>,
}

/// Who shares a step, as the flag takes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum BatchingKind {
    /// Prompts in steps of their own, before anyone decodes.
    PromptsFirst,
    /// Everyone in every step.
    Mixed,
}

/// Where requests come from.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum RequestSource {
    /// Made up, so many a second.
    Open(Vec<f64>),
    /// Made up, so many users.
    Closed(Vec<u32>),
    /// A trace.
    File(PathBuf),
}

impl FromStr for RequestSource {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            Some(("open", list)) => {
                let rate = |t: &str| t.parse::<f64>().ok().filter(|r| r.is_finite() && *r > 0.0 && *r <= 1e6);
                let rates = list.split(',').map(rate).collect::<Option<Vec<f64>>>();
                Ok(Self::Open(rates.ok_or(
                    "no such rates\n  accepted: open:R,.. with requests a second above 0 and up to 1000000, as in open:2.5 or open:1,2,4",
                )?))
            }
            Some(("closed", list)) => {
                let users = |t: &str| t.parse::<u32>().ok().filter(|n| (1..=65_536).contains(n));
                let users = list.split(',').map(users).collect::<Option<Vec<u32>>>();
                Ok(Self::Closed(
                    users.ok_or("no such users\n  accepted: closed:N,.. with users from 1 to 65536, as in closed:8 or closed:1,8,64")?,
                ))
            }
            _ => Ok(Self::File(PathBuf::from(text))),
        }
    }
}

fn range(text: &str) -> Result<RangeInclusive<u32>, String> {
    let number = |t: &str| t.trim().parse::<u32>().ok().filter(|n| (1..=16_777_216).contains(n));
    let (from, to) = text.split_once('-').unwrap_or((text, text));
    match (number(from), number(to)) {
        (Some(from), Some(to)) if from <= to => Ok(from..=to),
        _ => Err("no such lengths\n  accepted: a number of tokens from 1, or two of them from the smaller to the larger as in 512-2048"
            .to_owned()),
    }
}

/// A time that an objective may be.
pub(crate) fn milliseconds() -> impl Fn(&str) -> Result<f64, String> + Clone + Send + Sync + 'static {
    real("milliseconds above 0", |ms| ms > 0.0)
}

/// One load and how it was served.
pub(crate) struct LoadResult {
    /// The load as the flag says it.
    pub(crate) name: String,
    /// Requests of it.
    pub(crate) requests: usize,
    /// Its figures.
    pub(crate) summary: Summary,
    /// Requests a second that met every objective; `None` where none was named.
    pub(crate) good_per_s: Option<f64>,
}

/// Everything that is said of requests.
pub(crate) struct Answer {
    /// The deployment, its step that of one request.
    pub(crate) scenario: Scenario,
    /// Room for them.
    pub(crate) capacity: Capacity,
    /// How they are batched; `None` where no token fits.
    pub(crate) policy: Option<Policy>,
    /// One a load.
    pub(crate) loads: Vec<LoadResult>,
    /// Steps that were simulated: the others lie between them.
    pub(crate) simulated: usize,
}

/// Serves and prints.
pub(crate) fn run(args: &DeploymentArgs, requests: &RequestArgs, source: &RequestSource) -> Result<Outcome, Failure> {
    refuse_flags_of_a_step(args)?;
    let scenario = Scenario::new(args)?;
    let loads = loads(requests, source, &scenario)?;
    let capacity = Capacity::of(&scenario, requests.max_running, requests.step_tokens)?;
    let policy = (capacity.kv_tokens > 0).then(|| policy(&scenario, requests, &capacity));
    let mut times = times::Simulated::new(&scenario);
    let mut results = Vec::new();
    for (name, load, list) in loads.iter().filter(|_| policy.is_some()) {
        let Some(policy) = &policy else { break };
        let outcome = serving::serve(list, *load, policy, &mut times).map_err(|e| match e {
            serving::ServingError::Time(failure) => failure,
            serving::ServingError::Unservable(why) => InputError::new("--requests", why.to_string()).value(name.as_str()).into(),
        })?;
        let summary = Summary::of(&outcome);
        let good_per_s = good(requests, &outcome, &summary);
        results.push(LoadResult { name: name.clone(), requests: list.len(), summary, good_per_s });
    }
    let simulated = times.simulated();
    let answer = Answer { scenario, capacity, policy, loads: results, simulated };
    if args.json {
        output::answer_json(&report::json(&answer)?)?;
    } else {
        output::answer(&report::text(&answer))?;
    }
    let served = answer.loads.iter().any(|l| l.summary.served > 0) && answer.loads.iter().all(|l| l.summary.refused == 0);
    Ok(if served { Outcome::Yes } else { Outcome::No })
}

/// Requests decide what a step computes.
fn refuse_flags_of_a_step(args: &DeploymentArgs) -> Result<(), Failure> {
    let why = |flag, use_instead| {
        let message = format!("says what one step computes, and with --requests the requests do; use {use_instead}");
        Err(InputError::new(flag, message).into())
    };
    match (args.batch, args.context, args.phase) {
        (Some(_), _, _) => why("--batch", "--max-running, or --requests closed:N"),
        (_, Some(_), _) => why("--context", "--prompt-tokens and --output-tokens"),
        (_, _, Some(_)) => why("--phase", "a trace whose answers are one token long for prompts alone"),
        _ => Ok(()),
    }
}

fn policy(scenario: &Scenario, requests: &RequestArgs, capacity: &Capacity) -> Policy {
    let batching = match requests.batching {
        Some(BatchingKind::PromptsFirst) => Batching::PromptsFirst,
        Some(BatchingKind::Mixed) => Batching::Mixed,
        None if scenario.engine == Engine::Vllm => Batching::Mixed,
        None => Batching::PromptsFirst,
    };
    let tokens = scenario.speculation.as_ref().map_or(1.0, |plan| plan.acceptance.tokens_per_step());
    Policy {
        max_running: requests.max_running,
        kv_tokens: capacity.kv_tokens,
        budget_tokens: requests.step_tokens,
        batching,
        millitokens_per_step: (tokens * 1000.0).round() as u32,
    }
}

type NamedLoad = (String, Load, Vec<Request>);

fn loads(args: &RequestArgs, source: &RequestSource, scenario: &Scenario) -> Result<Vec<NamedLoad>, Failure> {
    let lengths = Lengths { prompt: args.prompt_tokens.clone(), output: args.output_tokens.clone() };
    let count = args.request_count as usize;
    let longest = |list: &[Request]| list.iter().map(|r| u64::from(r.prompt) + u64::from(r.output)).max().unwrap_or(0);
    let made_up = |rate| serving::made_up(count, rate, &lengths, scenario.seed);
    let (all, flag): (Vec<NamedLoad>, _) = match source {
        RequestSource::Open(rates) => {
            let rates = each_once("--requests", rates);
            (rates.iter().map(|r| (format!("open:{r}"), Load::Open, made_up(Some(*r)))).collect(), "--prompt-tokens")
        }
        RequestSource::Closed(users) => {
            let users = each_once("--requests", users);
            (users.iter().map(|n| (format!("closed:{n}"), Load::Closed { users: *n }, made_up(None))).collect(), "--prompt-tokens")
        }
        RequestSource::File(path) => {
            let name = path.to_string_lossy().into_owned();
            if !path.exists() {
                let error = InputError::new("--requests", "is neither a load nor a file that exists").value(name);
                return Err(error.accepted(["open:RATE", "closed:USERS", "a trace of requests"]).into());
            }
            let text = resolve::read_text("--requests", &name, path)?;
            let read = trace::read(&text).map_err(|e| InputError::new("--requests", format!("{name}: {e}")).value(&name))?;
            (vec![(name, Load::Open, read)], "--requests")
        }
    };
    let positions = scenario.model.spec.max_positions;
    let late = |list: &[Request]| list.last().is_some_and(|r| r.arrival.as_us() / 1e6 > trace::MOST_SECONDS);
    if let Some((name, _, _)) = all.iter().find(|(_, _, list)| late(list)) {
        let error = InputError::new("--requests", format!("{count} requests at that rate take more than a month")).value(name.as_str());
        return Err(error.accepted(["a higher rate", "fewer requests by --request-count"]).into());
    }
    if let Some((_, _, list)) = all.iter().find(|(_, _, list)| longest(list) > positions) {
        let (model, longest) = (&scenario.model.spec.name, longest(list));
        let message = format!("the longest request reaches position {longest}, and {model} allows {positions}");
        return Err(InputError::new(flag, message).into());
    }
    Ok(all)
}

/// Requests a second that met the objectives.
fn good(args: &RequestArgs, outcome: &Served, summary: &Summary) -> Option<f64> {
    if args.slo_ttft_ms.is_none() && args.slo_tpot_ms.is_none() {
        return None;
    }
    let within = |ms: f64, most: Option<f64>| most.is_none_or(|most| ms <= most);
    let meets =
        |s: &&serving::Served| within(s.ttft().as_ms(), args.slo_ttft_ms) && within(s.tpot().map_or(0.0, |t| t.as_ms()), args.slo_tpot_ms);
    let good = outcome.served.iter().filter(meets).count();
    Some(if summary.duration_s > 0.0 { good as f64 / summary.duration_s } else { 0.0 })
}

/// The deployment's step with other sequences.
fn with_step(scenario: &Scenario, step: Step, context: u32) -> Scenario {
    scenario.with_step(step, context)
}

/// A decode step of equal sequences, or the verification that takes its place.
fn decode_step(scenario: &Scenario, batch: u32, context: u32) -> Step {
    let phase = scenario.speculation.as_ref().map_or(Phase::Decode, |plan| Phase::Verify(plan.drafted + 1));
    Step::uniform(phase, batch, context)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loads_and_lengths_are_words_with_numbers() {
        assert_eq!("open:2.5".parse(), Ok(RequestSource::Open(vec![2.5])));
        assert_eq!("closed:1,8,64".parse(), Ok(RequestSource::Closed(vec![1, 8, 64])));
        assert_eq!("trace.csv".parse(), Ok(RequestSource::File("trace.csv".into())));
        for wrong in ["open:", "open:0", "open:-1", "open:nan", "closed:0", "closed:1.5", "closed:1,,2"] {
            assert!(wrong.parse::<RequestSource>().is_err(), "{wrong}");
        }
        assert_eq!((range("5"), range("5-9")), (Ok(5..=5), Ok(5..=9)));
        for wrong in ["", "0", "9-5", "a", "5-", "-5"] {
            assert!(range(wrong).is_err(), "{wrong}");
        }
    }
}
