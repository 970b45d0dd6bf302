//! The transfers of collectives as a Chrome trace, which Perfetto opens: one process a collective, one thread a GPU.
//!
//! Timestamps are picoseconds written as microseconds with six decimals, from integers, so equal predictions give equal bytes.

use super::{CollectiveRequest, Prediction};
use crate::time::Duration;
use std::fmt::Write as _;

/// One object of the Chrome trace-event format with every transfer of every collective, and what each rank waited for.
pub fn chrome_trace(collectives: &[(CollectiveRequest, &Prediction)]) -> String {
    let mut text = String::from("{\"displayTimeUnit\":\"ns\",\"otherData\":{\"origin\":\"sim\"},\"traceEvents\":[");
    let mut first = true;
    let mut event = |line: std::fmt::Arguments<'_>| {
        text.push_str(if first { "\n" } else { ",\n" });
        first = false;
        // Writing to a string cannot fail.
        let _ = text.write_fmt(line);
    };
    for (process, (request, prediction)) in collectives.iter().enumerate() {
        let (op, algorithm, protocol) = (request.op, prediction.algorithm, prediction.protocol);
        let name = format!("{op} of {} bytes, {} ranks, {algorithm} {protocol}", request.bytes, request.ranks.len());
        event(format_args!("{{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":{process},\"args\":{{\"name\":\"{name}\"}}}}"));
        for (rank, (&gpu, timing)) in request.ranks.iter().zip(&prediction.ranks).enumerate() {
            event(format_args!(
                "{{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":{process},\"tid\":{gpu},\"args\":{{\"name\":\"rank {rank} on GPU {gpu}\"}}}}"
            ));
            let inside = timing.finish - timing.arrival;
            event(format_args!(
                "{{\"name\":\"{op}\",\"cat\":\"collective\",\"ph\":\"X\",\"pid\":{process},\"tid\":{gpu},\"ts\":{},\"dur\":{},\"args\":{{\"skew_us\":{},\"transfer_us\":{}}}}}",
                micros(timing.arrival),
                micros(inside),
                micros(timing.skew),
                micros(timing.transfer)
            ));
        }
        for transfer in &prediction.transfers {
            event(format_args!(
                "{{\"name\":\"step {} to GPU {}\",\"cat\":\"transfer\",\"ph\":\"X\",\"pid\":{process},\"tid\":{},\"ts\":{},\"dur\":{},\"args\":{{\"payload_bytes\":{}}}}}",
                transfer.step,
                transfer.to,
                transfer.from,
                micros(transfer.start),
                micros(transfer.end - transfer.start),
                transfer.payload_bytes
            ));
        }
    }
    text.push_str("\n]}\n");
    text
}

fn micros(span: Duration) -> String {
    format!("{}.{:06}", span.as_ps() / 1_000_000, span.as_ps() % 1_000_000)
}
