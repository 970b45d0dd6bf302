//! Request traces, and that whatever was read can be served.

use crate::check_reason;
use moetwin_sim::import::requests::read;
use moetwin_sim::serving::{Batching, Load, Policy, Request, StepShape, StepTimes, serve};
use moetwin_sim::{Duration, Time};
use std::convert::Infallible;

struct Constant;

impl StepTimes for Constant {
    type Error = Infallible;
    fn time(&mut self, _: &StepShape) -> Result<Duration, Infallible> {
        Ok(Duration::from_us(1))
    }
}

/// Any bytes as a trace: rejected with a reason and a place, or requests in the order of their arrival, the first at time zero. The first
/// few of them, cut to lengths that are quickly served, are then answered once each or refused.
pub fn check_requests(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let requests = match read(text) {
        Ok(requests) => requests,
        Err(e) => {
            check_reason(&e.to_string());
            assert!(e.line > 0 && e.column > 0);
            return;
        }
    };
    assert_eq!(requests.first().map(|r| r.arrival), Some(Time::ZERO));
    assert!(requests.windows(2).all(|r| r[0].arrival <= r[1].arrival));
    assert!(requests.iter().all(|r| r.prompt > 0 && r.output > 0));
    let short = |r: &Request| Request { prompt: r.prompt % 300 + 1, output: r.output % 40 + 1, ..*r };
    let few: Vec<Request> = requests.iter().take(32).map(short).collect();
    for (batching, load) in [(Batching::Mixed, Load::Open), (Batching::PromptsFirst, Load::Closed { users: 3 })] {
        let policy = Policy { max_running: 4, kv_tokens: 256, budget_tokens: 64, batching, millitokens_per_step: 1000 };
        match serve(&few, load, &policy, &mut Constant) {
            Ok(out) => assert_eq!(out.served.len() + out.refused.len(), few.len()),
            Err(_) => panic!("a legal policy and legal requests"),
        }
    }
}
