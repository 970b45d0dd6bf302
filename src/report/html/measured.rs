//! Predicted beside measured, where a profile or a trace of a real step is given.

use super::markup::{Column, Table, esc, list, swatch};
use super::sections::words;
use crate::report::profile::ProfileAnswer;
use moetwin::sim::profile::shortened;

/// The section.
pub(super) fn section(a: &ProfileAnswer) -> String {
    use Column::{Bar, Number, Words};
    let step = &a.beside.step;
    let mut table =
        Table::new("The step, milliseconds", &[("", Words), ("measured", Number), ("predicted", Number), ("difference", Number)]);
    let idle = |whole: f64, busy: f64| (whole - busy).max(0.0);
    let measured_idle = step.measured_ms.zip(step.measured_busy_ms).map(|(whole, busy)| idle(whole, busy));
    for (name, measured, predicted) in [
        ("step", step.measured_ms, step.predicted_ms),
        ("kernels run", step.measured_busy_ms, step.predicted_busy_ms),
        ("nothing runs", measured_idle, idle(step.predicted_ms, step.predicted_busy_ms)),
    ] {
        let of = |v: Option<f64>| v.map_or_else(|| "not in the profile".to_owned(), |v| format!("{v:.3}"));
        let difference = measured.map_or_else(String::new, |m| format!("{:+.3}", m - predicted));
        table.row(&[name.to_owned(), of(measured), format!("{predicted:.3}"), difference]);
    }
    let columns = [
        ("class", Words),
        ("measured ms", Number),
        ("predicted ms", Number),
        ("difference", Number),
        ("", Bar),
        ("kernels", Number),
        ("most of it", Words),
    ];
    let mut classes = Table::new("Kernels by class, of all streams, mean over steps and GPUs", &columns);
    let most = a.beside.rows.iter().map(|r| r.measured_us.max(r.predicted_us)).fold(0.0, f64::max).max(1e-9);
    for r in &a.beside.rows {
        let colour = if matches!(r.class, "other" | "copy") { "waiting-line".to_owned() } else { format!("k-{}", r.class) };
        classes.row(&[
            format!("{}{}", swatch(&colour), esc(&words(r.class))),
            format!("{:.3}", r.measured_us / 1e3),
            format!("{:.3}", r.predicted_us / 1e3),
            format!("{:+.3}", r.difference_us / 1e3),
            pair(r.measured_us / most, r.predicted_us / most, &colour),
            format!("{:.0}", r.measured_calls),
            r.kernels.first().map_or_else(String::new, |k| format!("<code>{}</code>", esc(&shortened(&k.name)))),
        ]);
    }
    let warnings = if a.warnings.is_empty() { String::new() } else { list(&a.warnings) };
    format!(
        "<p>{}. In each row the upper bar is measured, the lower one predicted. A profiler counts waiting for other ranks as part of an exchange.</p>\n{warnings}{}{}{}",
        esc(&a.said),
        table.html(),
        list(&a.beside.findings),
        classes.html()
    )
}

/// Two bars above each other: measured full, predicted pale with an edge.
fn pair(measured: f64, predicted: f64, colour: &str) -> String {
    let width = |share: f64| share.clamp(0.0, 1.0) * 100.0;
    format!(
        "<svg class=\"pair\" aria-hidden=\"true\"><rect width=\"{:.2}%\" height=\"9\" rx=\"2\" fill=\"var(--{colour})\"/>\
         <rect y=\"11\" width=\"{:.2}%\" height=\"7\" rx=\"2\" fill=\"var(--waiting)\" stroke=\"var(--{colour})\"/></svg>",
        width(measured),
        width(predicted)
    )
}
