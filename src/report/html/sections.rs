//! The parts of the page that are words, numbers and bars.

use super::super::sim_json::SimJson;
use super::super::sim_text::{calls, mostly, percent, phase_name};
use super::markup::{Column, Table, bar, esc, legend, list, strip, swatch};
use crate::sensitivity::{Change, Changed, Kind};
use crate::table::count;
use std::fmt::Write as _;

/// Class or exchange as people write it.
pub(super) fn words(name: &str) -> String {
    name.replace('_', " ").replace("mlp", "MLP")
}

/// Title, what was asked, and the verdict in figures.
pub(super) fn head(json: &SimJson<'_>) -> String {
    let d = &json.deployment;
    let mut split = vec![format!("tp {}", d.split.tp)];
    for (name, n) in [
        ("pp", d.split.pp),
        ("dp-attention", d.split.dp_attention),
        ("ep", d.split.ep),
        ("dcp", d.split.dcp),
        ("replicas", d.split.replicas),
    ] {
        if n > 1 {
            split.push(format!("{name} {n}"));
        }
    }
    let on = |b: bool| if b { "on" } else { "off" };
    let step = format!("{}, batch {}, context {}", d.phase, d.batch, count(u64::from(d.context)));
    let how = format!(
        "graphs {}, peer access {}, all-reduce {}, KV {}, routing {}, engine {}",
        on(d.graphs),
        on(d.p2p),
        d.allreduce,
        d.split.kv_dtype.name(),
        d.routing,
        d.engine
    );
    format!(
        "<h1>{} on {}</h1>\n<p class=\"lead\">{}; {}</p>\n<p class=\"lead\">{}</p>\n{}",
        esc(json.model),
        esc(json.machine),
        esc(&split.join(", ")),
        esc(&step),
        esc(&how),
        figures(json)
    )
}

fn figure(name: &str, class: &str, value: &str, unit: &str, more: &str) -> String {
    format!(
        "<div><dt>{name}</dt><dd><div class=\"value {class}\">{value} <span class=\"unit\">{unit}</span></div><div class=\"more\">{}</div></dd></div>\n",
        esc(more)
    )
}

fn figures(json: &SimJson<'_>) -> String {
    let (yes, no) = (("good", "yes"), ("bad", "no"));
    let verdict = |is: bool| if is { yes } else { no };
    let mut out = String::from("<dl class=\"figures\">\n");
    let (class, word) = verdict(json.starts);
    let states =
        format!("no order of {} ranks' start-up steps breaks an invariant ({} states)", json.deployment.ranks, count(json.init.states));
    out.push_str(&figure("Starts", class, word, "", json.init.story.unwrap_or(&states)));
    let (class, word) = verdict(json.fits);
    let most = json.memory.per_rank.iter().map(|r| r.total_gib).fold(0.0, f64::max);
    let fits = match &json.memory.out_of_memory {
        Some(e) => format!(
            "rank {} runs out at {}: {} needs {:.2} GiB, and {:.2} of {:.2} are left",
            e.rank,
            phase_name(e.phase),
            e.line,
            e.need_gib,
            e.free_gib,
            json.memory.capacity_gib
        ),
        None => format!("{most:.1} of {:.1} GiB on the fullest rank", json.memory.capacity_gib),
    };
    out.push_str(&figure("Fits", class, word, "", &fits));
    match (json.step_ms, json.tokens_per_s) {
        (Some(step), Some(rate)) => {
            let range = match json.uncertainty {
                Some(u) if json.speculation.is_none() => format!("{:.2} to {:.2} ms in eight of ten", u.low_ms, u.high_ms),
                _ => "drafts and verification".to_owned(),
            };
            out.push_str(&figure("Step", "", &format!("{step:.2}"), "ms", &range));
            let (served, asked) = (json.batch_served, json.deployment.batch);
            let sequences = if served < asked {
                format!("with the {served} of {asked} sequences that fit; the rest wait")
            } else if served == 1 {
                "one sequence".to_owned()
            } else {
                format!("over {served} sequences, {:.1} each", rate / served as f64)
            };
            out.push_str(&figure("Speed", "", &format!("{rate:.1}"), "tok/s", &sequences));
        }
        _ => out.push_str(&figure("Speed", "bad", "none", "", "not even one sequence fits")),
    }
    out.push_str("</dl>\n");
    out
}

/// By class of work.
pub(super) fn classes(json: &SimJson<'_>) -> String {
    use Column::{Bar, Number, Words};
    let mut table = Table::new(
        "Time of the step by class of work",
        &[
            ("class", Words),
            ("ms", Number),
            ("± ms", Number),
            ("share", Number),
            ("", Bar),
            ("calls", Number),
            ("hidden ms", Number),
            ("mostly", Words),
        ],
    );
    let most = json.breakdown.iter().map(|r| r.share).fold(0.0, f64::max).max(1e-9);
    for row in json.breakdown {
        let colour = format!("k-{}", row.class);
        let hidden = if row.hidden_ms >= 0.0005 { format!("{:.3}", row.hidden_ms) } else { String::new() };
        table.row(&[
            format!("{}{}", swatch(&colour), esc(&words(row.class))),
            format!("{:.3}", row.ms),
            format!("{:.3}", row.error_ms),
            percent(row.share),
            bar(row.share / most, &colour),
            calls(row.calls),
            hidden,
            mostly(&row.provenance).to_owned(),
        ]);
    }
    let ms: f64 = json.breakdown.iter().map(|r| r.ms).sum();
    let empty = String::new;
    table.sum(&[
        "step".into(),
        format!("{ms:.3}"),
        empty(),
        percent(json.breakdown.iter().map(|r| r.share).sum()),
        empty(),
        empty(),
        empty(),
        empty(),
    ]);
    let part = if json.speculation.is_some() { " Of a step with drafting this is the verification." } else { "" };
    format!(
        "<p>The chain of commands that decides when the step ends, so the parts add up to it. What runs beside that chain is in the column \
         <i>hidden</i>: making it faster changes nothing.{part}</p>\n{}",
        table.html()
    )
}

/// Drafting: what it is made of and whether it wins.
pub(super) fn speculation(json: &SimJson<'_>) -> String {
    let Some(s) = &json.speculation else { return String::new() };
    let mut table =
        Table::new("Parts of a step with drafting", &[("part", Column::Words), ("ms", Column::Number), ("what", Column::Words)]);
    table.row(&[
        "verification".into(),
        format!("{:.3}", s.verify_ms),
        format!("captured {:.2} ms, eager (from Python) {:.2} ms", s.verify_captured_ms, s.verify_eager_ms),
    ]);
    table.row(&["drafts".into(), format!("{:.3}", s.draft_ms), format!("{} passes of the draft ({})", s.drafted, esc(s.kind))]);
    let captured = format!("{:.1} tok/s; {:.1} from a captured graph", s.plain_tokens_per_s, s.plain_captured_tokens_per_s);
    table.row(&["step without drafting".into(), format!("{:.3}", s.plain_step_ms), captured]);
    let chances: Vec<String> = s.acceptance.iter().map(|p| format!("{p:.2}")).collect();
    let verdict = if s.wins { "wins" } else { "loses" };
    format!(
        "<p>Drafting <strong>{verdict}</strong>: {:.2} tokens a step (acceptance {}, {}), and it breaks even at {:.2}.</p>\n{}",
        s.tokens_per_step,
        chances.join(", "),
        esc(s.acceptance_source),
        s.break_even_tokens,
        table.html()
    )
}

/// By what would shorten it.
pub(super) fn bounds(json: &SimJson<'_>) -> String {
    let (Some(b), Some(text)) = (json.bounds, json.bound_by) else { return String::new() };
    let kinds = [
        ("b-memory", "memory rate", b.memory, "weights and caches over the rate of device memory"),
        ("b-compute", "arithmetic", b.compute, "multiplications over the rate of the tensor cores"),
        ("b-kernel_latency", "kernel latency", b.kernel_latency, "starts, dependent steps and tails of kernels"),
        ("b-link", "link rate", b.link, "bytes over links between GPUs"),
        ("b-exchange_latency", "exchange latency", b.exchange_latency, "steps of exchanges, whatever their size"),
        ("b-launch", "launches", b.launch, "getting kernels started"),
    ];
    let mut table = Table::new(
        "The same time by what bounds it",
        &[("bound by", Column::Words), ("share", Column::Number), ("ms", Column::Number), ("what it is", Column::Words)],
    );
    let mut said = Vec::new();
    let step = json.breakdown.iter().map(|r| r.ms).sum::<f64>();
    for (colour, name, share, what) in kinds.iter().filter(|k| k.2 > 0.0) {
        table.row(&[format!("{}{name}", swatch(colour)), percent(*share), format!("{:.3}", share * step), (*what).to_owned()]);
        said.push(format!("{name} {}", percent(*share)));
    }
    let parts: Vec<(&str, f64)> = kinds.iter().map(|k| (k.0, k.2)).collect();
    format!(
        "<p>{}</p>\n{}{}",
        esc(&capital(&words(text))),
        strip(&format!("Shares of the step: {}", said.join(", ")), &parts),
        table.html()
    )
}

fn capital(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

/// What comes of changes.
pub(super) fn changes(json: &SimJson<'_>, changes: &[Change]) -> String {
    use Column::{Bar, Number, Words};
    let columns = [("change", Words), ("speed", Number), ("", Bar), ("tok/s", Number), ("step ms", Number), ("how", Words)];
    let mut table = Table::new("The same question with one thing changed, simulated again", &columns);
    let faster = |c: &Change| if let Changed::Step { faster, .. } = c.result { faster } else { f64::NEG_INFINITY };
    let mut order: Vec<&Change> = changes.iter().collect();
    order.sort_by(|a, b| faster(b).total_cmp(&faster(a)));
    let most = order.iter().map(|c| faster(c)).filter(|f| f.is_finite()).map(f64::abs).fold(0.0, f64::max).max(1e-9);
    for change in &order {
        let kind = match change.kind {
            Kind::Hardware => "another machine",
            Kind::Kernels => "other kernels",
            Kind::Flag => "a flag",
        };
        let how = if change.kind == Kind::Flag { format!("<code>{}</code>", esc(&change.how)) } else { esc(&change.how) };
        let name = format!("{} <span class=\"note\">{kind}</span>", change.what);
        match &change.result {
            Changed::Step { step_ms, tokens_per_s, faster } => {
                let colour = if *faster < 0.0 { "bad" } else { "good" };
                table.row(&[
                    name,
                    format!("<span class=\"{}\">{}</span>", if faster.abs() < 0.005 { "muted" } else { colour }, signed(*faster)),
                    bar(faster.abs() / most, colour),
                    format!("{tokens_per_s:.1}"),
                    format!("{step_ms:.2}"),
                    how,
                ]);
            }
            Changed::Impossible { reason } => {
                let none = String::new;
                table.row(&[name, none(), none(), none(), none(), format!("not possible: {}", esc(reason))]);
            }
        }
    }
    let now = json.tokens_per_s.unwrap_or_default();
    format!(
        "<p>Each row is a simulation of its own, beside the {now:.1} tok/s of this one. Changes do not add up: what the first one leaves is what the \
         next one can shorten.</p>\n{}",
        table.html()
    )
}

/// A change in percent with its sign.
fn signed(share: f64) -> String {
    let percent = share * 100.0;
    if percent.abs() < 0.05 { "0 %".to_owned() } else { format!("{}{:.1} %", if percent < 0.0 { "−" } else { "+" }, percent.abs()) }
}

/// The range and what it is made of.
pub(super) fn certainty(json: &SimJson<'_>) -> String {
    let Some(u) = json.uncertainty else { return String::new() };
    let step = json.breakdown.iter().map(|r| r.ms).sum::<f64>();
    let columns = [
        ("class", Column::Words),
        ("± ms", Column::Number),
        ("of its own time", Column::Number),
        ("of the doubt", Column::Number),
        ("", Column::Bar),
    ];
    let mut table = Table::new("Standard errors by class", &columns);
    // Classes are off independently, so squares add up.
    let all: f64 = json.breakdown.iter().map(|r| r.error_ms * r.error_ms).sum::<f64>().max(1e-300);
    let mut rows: Vec<_> = json.breakdown.iter().filter(|r| r.error_ms > 0.0).collect();
    rows.sort_by(|a, b| b.error_ms.total_cmp(&a.error_ms));
    for row in rows {
        let part = row.error_ms * row.error_ms / all;
        let colour = format!("k-{}", row.class);
        table.row(&[
            format!("{}{}", swatch(&colour), esc(&words(row.class))),
            format!("{:.3}", row.error_ms),
            percent(row.error_ms / row.ms.max(1e-12)),
            percent(part),
            bar(part, &colour),
        ]);
    }
    format!(
        "{}<p>The step takes {step:.2} ms give or take {}; eight in ten such steps lie between {:.2} and {:.2} ms. Kernel times carry the error of \
         their table with points left out, what is modelled a quarter. Errors of one class are taken to go together, those of different classes not. \
         What the model leaves out is not in the range.</p>\n{}",
        range(step, u.low_ms, u.high_ms),
        percent(u.relative),
        u.low_ms,
        u.high_ms,
        table.html()
    )
}

/// A line from zero with the range on it.
fn range(step: f64, low: f64, high: f64) -> String {
    let most = high * 1.12;
    // In percent of the width, so that it fits a phone.
    let x = |ms: f64| ms / most * 100.0;
    let mut out = format!("<svg class=\"wide\" height=\"64\" role=\"img\" aria-label=\"{step:.2} ms, from {low:.2} to {high:.2} ms\">");
    out.push_str("<line x1=\"0\" x2=\"100%\" y1=\"34\" y2=\"34\" stroke=\"var(--line)\" stroke-width=\"2\"/>");
    let _ = write!(
        out,
        "<rect x=\"{:.2}%\" width=\"{:.2}%\" y=\"26\" height=\"16\" rx=\"3\" fill=\"var(--accent)\" opacity=\"0.45\"/>",
        x(low),
        x(high) - x(low)
    );
    let _ = write!(out, "<line x1=\"{0:.2}%\" x2=\"{0:.2}%\" y1=\"20\" y2=\"48\" stroke=\"var(--text)\" stroke-width=\"2\"/>", x(step));
    let _ = write!(out, "<text x=\"{:.2}%\" y=\"14\" text-anchor=\"middle\">{step:.2} ms</text>", x(step));
    let _ = write!(out, "<text class=\"m\" x=\"{:.2}%\" y=\"60\" text-anchor=\"end\">{low:.2}</text>", x(low));
    let _ = write!(out, "<text class=\"m\" x=\"{:.2}%\" y=\"60\">{high:.2}</text>", x(high));
    out.push_str("<text class=\"m\" x=\"0\" y=\"60\">0</text></svg>\n");
    out
}

/// What makes this page again.
pub(super) fn again(json: &SimJson<'_>, command: &str) -> String {
    format!(
        "<pre tabindex=\"0\" aria-label=\"Command\"><code>{}</code></pre>\n<dl class=\"same\"><dt>version</dt><dd>{}</dd><dt>seed</dt><dd>{}</dd>\
         <dt>digest of all inputs</dt><dd>{}</dd></dl>\n<p class=\"note\">The same version, inputs and seed give the same bytes. This file asks for \
         nothing over a network; everything that <code>--json</code> prints is in it as JSON, in the element <code>facts</code>.</p>\n",
        esc(command),
        env!("CARGO_PKG_VERSION"),
        json.seed,
        esc(&json.digest)
    )
}

/// Where times come from, as a strip.
pub(super) fn provenance(json: &SimJson<'_>) -> String {
    let p = &json.provenance;
    let parts = [("p-measured", p.measured), ("p-interpolated", p.interpolated), ("p-modelled", p.modelled)];
    let names = [
        format!("measured {}", percent(p.measured)),
        format!("interpolated between measurements {}", percent(p.interpolated)),
        format!("modelled from rates and floors {}", percent(p.modelled)),
    ];
    let said = format!("Share of the step: {}", names.join(", "));
    format!("{}{}", strip(&said, &parts), legend(parts.iter().zip(&names).map(|(part, name)| (part.0, name.as_str()))))
}

/// What is taken for granted, and what to know first.
pub(super) fn taken_for_granted(json: &SimJson<'_>) -> String {
    let mut out = String::new();
    for (title, items) in [("Warnings", &json.warnings), ("Taken for granted", &json.assumptions)] {
        if !items.is_empty() {
            let _ = write!(out, "<h3>{title}</h3>\n{}", list(items));
        }
    }
    out
}
