//! Parsing.

use super::VERSION;
use super::cursor::Cursor;
use super::header::{DTYPES, choice, parse_deployment, parse_placement, parse_step};
use super::value::{is_word_char, parse_object};
use crate::deployment::{Axis, Deployment};
use crate::dim::{Dim, Layout, Placement, Segment};
use crate::dtype::WeightFormat;
use crate::graph::{Graph, Node, Tensor, TensorKind};
use crate::ids::{IdVec, NodeId, TensorId};
use crate::op::Op;
use crate::weight::{WeightRef, WeightRole};
use serde_json::Value;
use std::fmt;

/// Why a text is not a graph, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseError {
    /// Line, from 1.
    pub line: usize,
    /// Character of the line, from 1.
    pub column: usize,
    /// What is wrong and what would be right.
    pub message: String,
    /// The line, shortened around the column.
    excerpt: String,
    /// Characters before the mark in `excerpt`.
    mark: usize,
}

impl std::error::Error for ParseError {}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}, column {}: {}\n  {}\n  {}^", self.line, self.column, self.message, self.excerpt, " ".repeat(self.mark))
    }
}

impl ParseError {
    /// Byte `at` of `line`.
    pub(super) fn new(line: &str, number: usize, at: usize, message: String) -> Self {
        /// Characters shown before and after the mark.
        const AROUND: usize = 60;
        let before = line.get(..at).map_or(0, |s| s.chars().count());
        let skip = before.saturating_sub(AROUND);
        let excerpt = line.chars().skip(skip).take(2 * AROUND).map(|c| if c.is_control() { ' ' } else { c }).collect();
        Self { line: number, column: before + 1, message, excerpt, mark: before - skip }
    }
}

/// Reads a graph. What it says is not checked beyond its form: see [`crate::verify::verify`].
///
/// Memory is proportional to the text, but for sequence counts and expert ranges, which are bounded.
pub fn parse(text: &str) -> Result<Graph, ParseError> {
    let mut parser = Parser::default();
    let mut last = 1;
    for (i, line) in text.lines().enumerate() {
        last = i + 1;
        let mut c = Cursor::new(line, last);
        if !c.at_end() {
            parser.line(&mut c)?;
        }
    }
    parser.finish().map_err(|message| ParseError::new("", last, 0, message))
}

#[derive(Default)]
struct Parser {
    version: bool,
    step: Option<crate::Step>,
    deployment: Option<Deployment>,
    placement: Option<crate::ExpertPlacement>,
    tensors: Vec<(TensorId, Tensor)>,
    nodes: Vec<Node>,
    outputs: Vec<(String, TensorId)>,
}

impl Parser {
    fn line(&mut self, c: &mut Cursor<'_>) -> Result<(), ParseError> {
        if !self.version {
            if !(c.eat_word("moetwin") && c.eat_word("graph")) {
                return Err(c.error(format!("the first line must be `moetwin graph {VERSION}`")));
            }
            c.skip_blanks();
            let at = c.mark();
            let version: u32 = c.number("a version")?;
            if version != VERSION {
                return Err(c.error_at(at, format!("version {version} is not known, only {VERSION} is")));
            }
            self.version = true;
            return c.end();
        }
        let at = c.mark();
        let once = |new: bool, what: &str| if new { Ok(()) } else { Err(c.clone().error_at(at, format!("a second {what} line"))) };
        if c.clone().eat_word("step") {
            once(self.step.is_none(), "step")?;
            c.eat_word("step");
            c.skip_blanks();
            self.step = Some(parse_step(c)?);
        } else if c.clone().eat_word("deployment") {
            once(self.deployment.is_none(), "deployment")?;
            c.eat_word("deployment");
            self.deployment = Some(parse_deployment(c)?);
        } else if c.clone().eat_word("placement") {
            once(self.placement.is_none(), "placement")?;
            c.eat_word("placement");
            self.placement = Some(parse_placement(c)?);
        } else if c.eat_word("output") {
            let name = c.name()?;
            c.expect('=')?;
            self.outputs.push((name, parse_tensor_id(c)?));
        } else {
            match c.peek() {
                Some('t') => self.source(c)?,
                Some('n') => self.node(c)?,
                _ => return Err(c.error("expected a tensor (t0 ...), a node (n0 ...), step, deployment, placement or output")),
            }
        }
        c.end()
    }

    fn source(&mut self, c: &mut Cursor<'_>) -> Result<(), ParseError> {
        let (id, mut tensor) = parse_result(c)?;
        c.expect('=')?;
        tensor.kind = parse_source_kind(c)?;
        self.tensors.push((id, tensor));
        Ok(())
    }

    fn node(&mut self, c: &mut Cursor<'_>) -> Result<(), ParseError> {
        let at = c.mark();
        let number: usize = c.tagged('n', "a node")?;
        if number != self.nodes.len() {
            return Err(c.error_at(at, format!("this node must be n{}: nodes are numbered in order", self.nodes.len())));
        }
        let id = NodeId(u32::try_from(number).map_err(|_| c.error_at(at, "too many nodes"))?);
        c.skip_blanks();
        let layer = if c.peek() == Some('L') { Some(c.tagged('L', "a layer")?) } else { None };
        let stage = c.tagged('s', "a stage")?;
        c.expect(':')?;
        let mut outputs = Vec::new();
        if !c.eat('=') {
            loop {
                let (tensor, mut t) = parse_result(c)?;
                t.producer = Some(id);
                self.tensors.push((tensor, t));
                outputs.push(tensor);
                if !c.eat(',') {
                    c.expect('=')?;
                    break;
                }
            }
        }
        let op = parse_op(c)?;
        let mut inputs = Vec::new();
        c.expect('(')?;
        if !c.eat(')') {
            loop {
                inputs.push(parse_tensor_id(c)?);
                if !c.eat(',') {
                    c.expect(')')?;
                    break;
                }
            }
        }
        self.nodes.push(Node { op, inputs, outputs, layer, stage });
        Ok(())
    }

    fn finish(self) -> Result<Graph, String> {
        if !self.version {
            return Err(format!("the text is empty; the first line must be `moetwin graph {VERSION}`"));
        }
        let step = self.step.ok_or("there is no step line")?;
        let deployment = self.deployment.ok_or("there is no deployment line")?;
        let mut tensors = self.tensors;
        tensors.sort_by_key(|(id, _)| *id);
        for (expected, (id, _)) in (0u32..).zip(&tensors) {
            match id.0.cmp(&expected) {
                std::cmp::Ordering::Equal => {}
                std::cmp::Ordering::Less => return Err(format!("{id} is defined twice")),
                std::cmp::Ordering::Greater => {
                    return Err(format!("t{expected} is not defined, but {id} is: tensors are numbered without gaps"));
                }
            }
        }
        Ok(Graph {
            step,
            deployment: Deployment { placement: self.placement, ..deployment },
            tensors: tensors.into_iter().map(|(_, t)| t).collect(),
            nodes: IdVec::from_iter(self.nodes),
            outputs: self.outputs,
        })
    }
}

fn parse_tensor_id(c: &mut Cursor<'_>) -> Result<TensorId, ParseError> {
    c.tagged('t', "a tensor").map(TensorId)
}

/// `t40 name: [dims] dtype layout update(t7)`; the kind of sources and the producer come later.
fn parse_result(c: &mut Cursor<'_>) -> Result<(TensorId, Tensor), ParseError> {
    let id = parse_tensor_id(c)?;
    let name = c.name()?;
    c.expect(':')?;
    c.expect('[')?;
    let mut shape = Vec::new();
    if !c.eat(']') {
        loop {
            shape.push(parse_dim(c)?);
            if !c.eat(',') {
                c.expect(']')?;
                break;
            }
        }
    }
    let dtype = choice(c, &DTYPES.map(|t| (t, t.name())))?;
    let layout = parse_layout(c)?;
    let mut kind = TensorKind::Activation;
    if c.eat_word("update") {
        c.expect('(')?;
        kind = TensorKind::CacheUpdate { of: parse_tensor_id(c)? };
        c.expect(')')?;
    }
    Ok((id, Tensor { name, kind, shape, dtype, layout, producer: None }))
}

fn parse_dim(c: &mut Cursor<'_>) -> Result<Dim, ParseError> {
    c.skip_blanks();
    let at = c.mark();
    if !c.peek().is_some_and(|ch| ch.is_ascii_digit()) {
        let word = c.bare_word("a dimension")?;
        return match word {
            "tokens" => Ok(Dim::Tokens),
            "logits_rows" => Ok(Dim::LogitsRows),
            "kv_rows" => Ok(Dim::KvRows),
            "received" => Ok(Dim::Received),
            "vocab" | "experts" => {
                c.expect('(')?;
                let n = c.number("a size")?;
                c.expect(')')?;
                Ok(if word == "vocab" { Dim::Vocab(n) } else { Dim::Experts(n) })
            }
            "packed" => {
                c.expect('(')?;
                c.expect(')')?;
                Ok(Dim::Packed(Vec::new()))
            }
            _ => {
                let known = "a number, UNITSxWIDTH, tokens, logits_rows, kv_rows, received, vocab(N) and experts(N)";
                Err(c.error_at(at, format!("{word} is not a dimension; dimensions are {known}")))
            }
        };
    }
    let first: u64 = c.number("a size")?;
    if c.peek() != Some('x') {
        return Ok(Dim::Fixed(first));
    }
    let mut segments = Vec::new();
    let mut units = u32::try_from(first).map_err(|_| c.error_at(at, format!("{first} units are too many")))?;
    loop {
        c.expect('x')?;
        let width = c.number("the width of a unit")?;
        segments.push(Segment { units, width, replicable: c.eat('~') });
        if !c.eat('|') {
            return Ok(Dim::Packed(segments));
        }
        units = c.number("a number of units")?;
    }
}

fn parse_layout(c: &mut Cursor<'_>) -> Result<Layout, ParseError> {
    let mut layout = Layout::replicated();
    loop {
        c.skip_blanks();
        let at = c.mark();
        let mut look = c.clone();
        let word = look.take_while(is_word_char);
        let placement = match word.strip_prefix("shard") {
            Some(dim) if look.peek() == Some('@') => {
                Placement::Shard(dim.parse().map_err(|_| c.error_at(at, format!("{word} does not name a dimension from 0 to 255")))?)
            }
            None if word == "partial" && look.peek() == Some('@') => Placement::Partial,
            _ => return Ok(layout),
        };
        look.expect('@')?;
        let axis = choice(&mut look, &Axis::ALL.map(|a| (a, a.name())))?;
        if layout.get(axis).is_some() {
            return Err(c.error_at(at, format!("axis {} is given twice", axis.name())));
        }
        layout = layout.with(axis, placement);
        *c = look;
    }
}

fn parse_source_kind(c: &mut Cursor<'_>) -> Result<TensorKind, ParseError> {
    c.skip_blanks();
    let at = c.mark();
    match c.bare_word("token_ids, positions, cache(L0) or weight(...)")? {
        "token_ids" => Ok(TensorKind::TokenIds),
        "positions" => Ok(TensorKind::Positions),
        "cache" => {
            c.expect('(')?;
            let layer = c.tagged('L', "a layer")?;
            c.expect(')')?;
            Ok(TensorKind::Cache { layer })
        }
        "weight" => {
            c.expect('(')?;
            c.skip_blanks();
            let at = c.mark();
            let word = c.bare_word("a weight role")?;
            let role = parse_role(word).ok_or_else(|| c.error_at(at, format!("{word} is not a weight role")))?;
            c.expect(',')?;
            c.skip_blanks();
            let mut layer = None;
            if c.peek() == Some('L') {
                layer = Some(c.tagged('L', "a layer")?);
                c.expect(',')?;
                c.skip_blanks();
            }
            let at = c.mark();
            let word = c.bare_word("a weight format")?;
            let format = parse_format(word).ok_or_else(|| {
                let known = "bf16, f16, f32, fp8_ROWSxCOLS, int4_gGROUP, nvfp4 and mxfp4";
                c.error_at(at, format!("{word} is not a weight format; formats are {known}"))
            })?;
            c.expect(')')?;
            Ok(TensorKind::Weight(WeightRef { role, layer, format }))
        }
        other => Err(c.error_at(at, format!("{other} is not a source; sources are token_ids, positions, cache(L0) and weight(...)"))),
    }
}

fn parse_role(word: &str) -> Option<WeightRole> {
    if let Some(index) = word.strip_prefix("other") {
        return index.parse().ok().map(WeightRole::Other);
    }
    serde_json::from_value(Value::from(word)).ok()
}

fn parse_format(word: &str) -> Option<WeightFormat> {
    let positive = |n: &str| n.parse::<u32>().ok().filter(|&n| n > 0);
    Some(match word {
        "bf16" => WeightFormat::Bf16,
        "f16" => WeightFormat::F16,
        "f32" => WeightFormat::F32,
        "nvfp4" => WeightFormat::Nvfp4,
        "mxfp4" => WeightFormat::Mxfp4,
        _ => match (word.strip_prefix("int4_g"), word.strip_prefix("fp8_").and_then(|s| s.split_once('x'))) {
            (Some(group), _) => WeightFormat::Int4Group { group: positive(group)? },
            (_, Some((rows, cols))) => WeightFormat::Fp8Block { rows: positive(rows)?, cols: positive(cols)? },
            _ => return None,
        },
    })
}

fn parse_op(c: &mut Cursor<'_>) -> Result<Op, ParseError> {
    c.skip_blanks();
    let at = c.mark();
    let word = c.bare_word("an op")?;
    let mut params = parse_object(c, 0)?;
    if let Some(key) = ["op", "role"].iter().find(|k| params.contains_key(**k)) {
        return Err(c.error_at(at, format!("{key} is not a parameter; a role is written as in linear.o")));
    }
    let name = match word.split_once('.') {
        Some((name, role)) => {
            params.insert("role".into(), Value::from(role));
            name
        }
        None => word,
    };
    params.insert("op".into(), Value::from(name));
    let given = Value::Object(params);
    let op: Op = serde_json::from_value(given.clone()).map_err(|e| c.error_at(at, format!("{word}: {e}")))?;
    let known = serde_json::to_value(&op).unwrap_or_default();
    match unknown_key(&given, &known) {
        Some(key) => Err(c.error_at(at, format!("{name} has no parameter {key}"))),
        None => Ok(op),
    }
}

/// A key of `given` that `known` lacks.
fn unknown_key<'v>(given: &'v Value, known: &Value) -> Option<&'v str> {
    given.as_object()?.iter().find_map(|(key, v)| match known.get(key) {
        None => Some(key.as_str()),
        Some(k) => unknown_key(v, k),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_show_where() {
        let text = "moetwin graph 1\nstep decode last 5+1\ndeployment tp=x\n";
        let e = parse(text).unwrap_err();
        assert_eq!((e.line, e.column), (3, 15));
        assert!(e.to_string().ends_with("  deployment tp=x\n                ^"), "{e}");
    }

    #[test]
    fn words_that_need_quotes_get_them() {
        for name in ["", "a b", "t\"1", "x#y", "é", "line\nbreak"] {
            let quoted = super::super::value::word(name);
            assert!(quoted.starts_with('"'));
            let mut c = Cursor::new(&quoted, 1);
            assert_eq!(c.name().unwrap(), name);
        }
    }
}
