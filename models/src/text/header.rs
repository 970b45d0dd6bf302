//! The step and the deployment.

use super::MOST_ENTRIES;
use super::cursor::Cursor;
use super::parse::ParseError;
use crate::deployment::{AllToAll, Deployment, ExpertPlacement};
use crate::dtype::DType;
use crate::step::{LogitsRows, Phase, Sequence, Step};
use std::fmt::Write;

const A2A: [(AllToAll, &str); 4] =
    [(AllToAll::None, "none"), (AllToAll::Nccl, "nccl"), (AllToAll::Flashinfer, "flashinfer"), (AllToAll::Deepep, "deepep")];
/// Every element type.
pub(super) const DTYPES: [DType; 5] = [DType::Bf16, DType::F16, DType::F32, DType::Fp8, DType::I32];

pub(super) fn print(text: &mut String, step: &Step, d: &Deployment) {
    let phase = match step.phase {
        Phase::Prefill => "prefill".into(),
        Phase::Decode => "decode".into(),
        Phase::Verify(n) => format!("verify:{n}"),
    };
    let rows = match step.logits {
        LogitsRows::Last => "last",
        LogitsRows::All => "all",
    };
    let _ = write!(text, "step {phase} {rows}");
    for run in step.sequences.chunk_by(|a, b| a == b) {
        let _ = write!(text, " {}+{}", run[0].past, run[0].new);
        if run.len() > 1 {
            let _ = write!(text, "*{}", run.len());
        }
    }
    let a2a = A2A.iter().find(|(a, _)| *a == d.a2a).map_or("none", |(_, name)| name);
    let _ = writeln!(
        text,
        "\ndeployment tp={} pp={} dp_attention={} ep={} dcp={} replicas={} a2a={a2a} kv={}",
        d.tp,
        d.pp,
        d.dp_attention,
        d.ep,
        d.dcp,
        d.replicas,
        d.kv_dtype.name()
    );
    if let Some(p) = &d.placement {
        text.push_str("placement");
        for run in p.physical_to_logical.chunk_by(|a, b| a.checked_add(1) == Some(*b)) {
            let _ = match run.len() {
                1 => write!(text, " {}", run[0]),
                n => write!(text, " {}..{}", run[0], u64::from(run[0]) + n as u64),
            };
        }
        text.push('\n');
    }
}

/// After the word `step`.
pub(super) fn parse_step(c: &mut Cursor<'_>) -> Result<Step, ParseError> {
    let at = c.mark();
    let phase = match c.bare_word("prefill, decode or verify:N")? {
        "prefill" => Phase::Prefill,
        "decode" => Phase::Decode,
        "verify" => {
            c.expect(':')?;
            Phase::Verify(c.number("the number of drafted tokens")?)
        }
        other => return Err(c.error_at(at, format!("{other} is not a phase; phases are prefill, decode and verify:N"))),
    };
    c.skip_blanks();
    let at = c.mark();
    let logits = match c.bare_word("last or all")? {
        "last" => LogitsRows::Last,
        "all" => LogitsRows::All,
        other => return Err(c.error_at(at, format!("{other} is neither last nor all"))),
    };
    let mut sequences = Vec::new();
    while !c.at_end() {
        let at = c.mark();
        let past = c.number("past tokens")?;
        c.expect('+')?;
        let new = c.number("new tokens")?;
        let count: usize = if c.eat('*') { c.number("a count of sequences")? } else { 1 };
        if count > MOST_ENTRIES - sequences.len() {
            return Err(c.error_at(at, format!("a step has at most {MOST_ENTRIES} sequences")));
        }
        sequences.extend(std::iter::repeat_n(Sequence { past, new }, count));
    }
    Ok(Step { phase, sequences, logits })
}

/// After the word `deployment`.
pub(super) fn parse_deployment(c: &mut Cursor<'_>) -> Result<Deployment, ParseError> {
    let mut d = Deployment::single();
    let mut seen: Vec<&str> = Vec::new();
    while !c.at_end() {
        let at = c.mark();
        let key = c.bare_word("a size of the deployment")?;
        if seen.contains(&key) {
            return Err(c.error_at(at, format!("{key} is given twice")));
        }
        seen.push(key);
        c.expect('=')?;
        let size = match key {
            "tp" => &mut d.tp,
            "pp" => &mut d.pp,
            "dp_attention" => &mut d.dp_attention,
            "ep" => &mut d.ep,
            "dcp" => &mut d.dcp,
            "replicas" => &mut d.replicas,
            "a2a" => {
                d.a2a = choice(c, &A2A)?;
                continue;
            }
            "kv" => {
                d.kv_dtype = choice(c, &DTYPES.map(|t| (t, t.name())))?;
                continue;
            }
            _ => {
                let known = "tp, pp, dp_attention, ep, dcp, replicas, a2a, kv";
                return Err(c.error_at(at, format!("{key} is not part of a deployment; known are {known}")));
            }
        };
        *size = c.number("a number of ranks")?;
    }
    Ok(d)
}

/// After the word `placement`.
pub(super) fn parse_placement(c: &mut Cursor<'_>) -> Result<ExpertPlacement, ParseError> {
    let mut physical_to_logical = Vec::new();
    while !c.at_end() {
        let at = c.mark();
        let first: u32 = c.number("an expert")?;
        let end = if c.eat('.') {
            c.expect('.')?;
            c.number("the expert after the last")?
        } else {
            u64::from(first) + 1
        };
        let count = end.saturating_sub(u64::from(first));
        if count > (MOST_ENTRIES - physical_to_logical.len()) as u64 {
            return Err(c.error_at(at, format!("a placement has at most {MOST_ENTRIES} slots")));
        }
        if end > u64::from(u32::MAX) + 1 {
            return Err(c.error_at(at, format!("experts are 0 to {}", u32::MAX)));
        }
        physical_to_logical.extend((u64::from(first)..end).map(|l| l as u32));
    }
    Ok(ExpertPlacement { physical_to_logical })
}

/// One of the named values.
pub(super) fn choice<T: Copy>(c: &mut Cursor<'_>, choices: &[(T, &str)]) -> Result<T, ParseError> {
    c.skip_blanks();
    let at = c.mark();
    let word = c.bare_word("a word")?;
    choices.iter().find(|(_, name)| *name == word).map(|(value, _)| *value).ok_or_else(|| {
        let names: Vec<&str> = choices.iter().map(|(_, name)| *name).collect();
        c.error_at(at, format!("{word} is not one of {}", names.join(", ")))
    })
}
