//! The steps, one after the other.

use super::{Batching, Load, Outcome, Policy, Request, Served, StepShape, StepTimes};
use crate::time::{Duration, Time};
use std::collections::VecDeque;

/// Why serving ended before its requests did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServingError<E> {
    /// A step's time is not known.
    Time(E),
    /// The question has no answer.
    Unservable(Unservable),
}

/// A question without an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unservable {
    /// A policy under which nothing can run.
    #[error("{0} is 0: nothing could ever run")]
    Nothing(&'static str),
    /// A request without a prompt or without an answer.
    #[error("request {0} has no token of prompt or of output; each needs at least one")]
    Empty(usize),
    /// More steps than any trace needs.
    #[error("more than {MOST_STEPS} steps")]
    TooLong,
}

impl<E> From<Unservable> for ServingError<E> {
    fn from(why: Unservable) -> Self {
        Self::Unservable(why)
    }
}

/// Steps that one call may take: a bound on every loop, far above a day of serving.
const MOST_STEPS: u64 = 1 << 28;

/// A request that waits or runs.
#[derive(Clone, Copy, Debug)]
struct Active {
    request: Request,
    arrival: Time,
    started: Option<Time>,
    first_token: Option<Time>,
    /// Tokens that a prefill must compute: the prompt, and after a preemption what had been answered.
    to_compute: u32,
    /// Of those, how many are in the cache.
    computed: u32,
    /// Thousandths of answered tokens.
    answered_milli: u64,
}

impl Active {
    fn new(request: Request, arrival: Time) -> Self {
        Self { request, arrival, started: None, first_token: None, to_compute: request.prompt, computed: 0, answered_milli: 0 }
    }
    fn answered(&self) -> u32 {
        u32::try_from(self.answered_milli / 1000).unwrap_or(u32::MAX).min(self.request.output)
    }
    /// Tokens in the pool while it decodes: the newest token is not in the cache yet.
    fn cached(&self) -> u64 {
        if self.decodes() {
            u64::from(self.request.prompt) + u64::from(self.answered().saturating_sub(1))
        } else {
            u64::from(self.computed)
        }
    }
    fn decodes(&self) -> bool {
        self.computed == self.to_compute
    }
    /// Tokens that it holds of the pool: all that its prefill will write, or its cache and what the next step adds.
    fn reserved(&self, per_step: u64) -> u64 {
        if self.decodes() { self.cached() + per_step } else { u64::from(self.to_compute) + per_step }
    }
    /// Its cache is given up; what it was answered becomes part of what must be computed.
    fn preempted(mut self) -> Self {
        self.to_compute = self.request.prompt + self.answered().saturating_sub(1);
        self.computed = 0;
        self
    }
}

struct Server<'a> {
    requests: &'a [Request],
    load: Load,
    policy: Policy,
    next: usize,
    now: Time,
    waiting: VecDeque<Active>,
    /// In the order of their admission: the last one is the first to lose its cache.
    running: Vec<Active>,
    out: Outcome,
}

/// Serves all requests. They are taken in the order of the list, which is that of their arrivals under [`Load::Open`].
pub fn serve<T: StepTimes>(requests: &[Request], load: Load, policy: &Policy, times: &mut T) -> Result<Outcome, ServingError<T::Error>> {
    let given = [
        (u64::from(policy.max_running), "max_running"),
        (policy.kv_tokens, "kv_tokens"),
        (u64::from(policy.budget_tokens), "budget_tokens"),
        (u64::from(policy.millitokens_per_step), "millitokens_per_step"),
    ];
    if let Some((_, name)) = given.into_iter().find(|(value, _)| *value == 0) {
        return Err(Unservable::Nothing(name).into());
    }
    if let Some(i) = requests.iter().position(|r| r.prompt == 0 || r.output == 0) {
        return Err(Unservable::Empty(i).into());
    }
    let mut server = Server {
        requests,
        load,
        policy: *policy,
        next: 0,
        now: Time::ZERO,
        waiting: VecDeque::new(),
        running: Vec::new(),
        out: Outcome::default(),
    };
    server.welcome(match load {
        Load::Open => 0,
        Load::Closed { users } => users.max(1),
    });
    while server.bring_work() {
        if server.out.steps == MOST_STEPS {
            return Err(Unservable::TooLong.into());
        }
        let shape = server.plan_step();
        let time = times.time(&shape.shape).map_err(ServingError::Time)?;
        server.finish_step(&shape, time);
    }
    server.out.end = server.now;
    Ok(server.out)
}

/// Who is in a step.
struct Planned {
    shape: StepShape,
    /// How many tokens of whose prompt, by place among the running.
    prompts: Vec<(usize, u32)>,
    decodes: bool,
}

impl Server<'_> {
    /// Tokens of the pool that a request may take in a decode step.
    fn per_step(&self) -> u64 {
        u64::from(self.policy.millitokens_per_step).div_ceil(1000)
    }
    /// Whether the pool could hold a request to its end if it were empty.
    fn holds(&self, r: &Request) -> bool {
        u64::from(r.prompt) + u64::from(r.output) - 1 + self.per_step() <= self.policy.kv_tokens
    }
    /// Lets requests in: those that have arrived, or `places` users' next ones.
    fn welcome(&mut self, places: u32) {
        let mut places = places;
        while let Some(request) = self.requests.get(self.next).copied() {
            let arrival = match self.load {
                Load::Open if request.arrival > self.now => break,
                Load::Open => request.arrival,
                Load::Closed { .. } if places == 0 => break,
                Load::Closed { .. } => self.now,
            };
            if self.holds(&request) {
                self.waiting.push_back(Active::new(request, arrival));
                places = places.saturating_sub(1);
            } else {
                self.out.refused.push(self.next);
            }
            self.next += 1;
        }
    }
    /// Waits for the next arrival where there is nothing to do; false where nothing will come either.
    fn bring_work(&mut self) -> bool {
        self.welcome(0);
        while self.running.is_empty() && self.waiting.is_empty() {
            let Some(request) = self.requests.get(self.next) else { return false };
            self.out.idle = Duration::from_ps(self.out.idle.as_ps() + request.arrival.since(self.now).as_ps());
            self.now = request.arrival.max(self.now);
            self.welcome(1);
        }
        true
    }
    fn reserved_tokens(&self) -> u64 {
        self.running.iter().map(|a| a.reserved(self.per_step())).sum()
    }
    fn plan_step(&mut self) -> Planned {
        self.make_room();
        let mixed = self.policy.batching == Batching::Mixed;
        let decoding = self.running.iter().filter(|a| a.decodes()).count();
        let taken = if mixed { u32::try_from(decoding).unwrap_or(u32::MAX) } else { 0 };
        let mut budget = self.policy.budget_tokens.saturating_sub(taken);
        let mut planned = Planned { shape: StepShape::default(), prompts: Vec::new(), decodes: false };
        for (i, active) in self.running.iter().enumerate().filter(|(_, a)| !a.decodes()) {
            planned.take(i, active, &mut budget);
        }
        // Admission: first come, first served, and nobody overtakes one for whom there is no room.
        let mut reserved = self.reserved_tokens();
        while budget > 0 && self.running.len() < self.policy.max_running as usize {
            let Some(mut active) = self.waiting.front().copied() else { break };
            let needs = active.reserved(self.per_step());
            if reserved + needs > self.policy.kv_tokens {
                break;
            }
            reserved += needs;
            self.waiting.pop_front();
            active.started.get_or_insert(self.now);
            self.running.push(active);
            planned.take(self.running.len() - 1, &active, &mut budget);
        }
        planned.decodes = mixed || planned.prompts.is_empty();
        if planned.decodes {
            for active in self.running.iter().filter(|a| a.decodes()) {
                planned.shape.decoding += 1;
                planned.shape.cached_tokens += active.cached();
            }
        }
        planned
    }
    /// Takes the cache from those admitted last until the next tokens of the others have room.
    fn make_room(&mut self) {
        while self.running.len() > 1 && self.reserved_tokens() > self.policy.kv_tokens {
            let Some(last) = self.running.pop() else { return };
            self.out.preemptions += 1;
            self.waiting.push_front(last.preempted());
        }
    }
    fn finish_step(&mut self, planned: &Planned, time: Duration) {
        self.now += time;
        let out = &mut self.out;
        out.steps += 1;
        out.prompt_steps += u64::from(!planned.prompts.is_empty());
        let running = u32::try_from(self.running.len()).unwrap_or(u32::MAX);
        out.running_sum += u64::from(running);
        out.running_most = out.running_most.max(running);
        out.waiting_most = out.waiting_most.max(self.waiting.len());
        if planned.decodes {
            for active in self.running.iter_mut().filter(|a| a.decodes()) {
                active.answered_milli += u64::from(self.policy.millitokens_per_step);
            }
        }
        for &(i, tokens) in &planned.prompts {
            let active = &mut self.running[i];
            active.computed += tokens;
            if active.decodes() && active.first_token.is_none() {
                // The prompt's last position gives the first token.
                active.first_token = Some(self.now);
                active.answered_milli = 1000;
            }
        }
        let held: u64 = self.running.iter().map(Active::cached).sum();
        self.out.kv_most_tokens = self.out.kv_most_tokens.max(held);
        let before = self.running.len();
        let now = self.now;
        let served = &mut self.out.served;
        self.running.retain(|a| {
            let Some(first_token) = a.first_token.filter(|_| a.answered() == a.request.output) else { return true };
            served.push(Served {
                arrival: a.arrival,
                started: a.started.unwrap_or(now),
                first_token,
                finished: now,
                output: a.request.output,
                prompt: a.request.prompt,
            });
            false
        });
        let left = u32::try_from(before - self.running.len()).unwrap_or(u32::MAX);
        self.welcome(left);
    }
}

impl Planned {
    /// As much of a prompt as the budget allows.
    fn take(&mut self, index: usize, active: &Active, budget: &mut u32) {
        let tokens = (active.to_compute - active.computed).min(*budget);
        if tokens > 0 {
            *budget -= tokens;
            self.shape.add_prompt(active.computed, tokens);
            self.prompts.push((index, tokens));
        }
    }
}
