//! The time line: data for the script, the frame it draws in, and the same in sums.

use super::markup::{Column, Table, legend};
use super::sections::words;
use moetwin::sim::cost::Provenance;
use moetwin::sim::time::{Duration, Time};
use moetwin::sim::timeline::{DrawnSpan, Lane, Timeline, lane_name};
use serde::Serialize;

/// Where a span's time comes from, by number.
const ORIGINS: [&str; 3] = ["measured", "interpolated", "modelled"];

/// What the script draws. Nanoseconds.
#[derive(Serialize)]
pub(super) struct TimelineJson {
    total_ns: u64,
    /// Classes of work, by number.
    classes: Vec<&'static str>,
    /// Names of ops, by number.
    names: Vec<&'static str>,
    /// Where times come from, by number.
    origins: [&'static str; 3],
    /// Whether neighbours of one class and layer are drawn as one.
    merged: bool,
    lanes: Vec<LaneJson>,
}

#[derive(Serialize)]
struct LaneJson {
    rank: u32,
    name: String,
    /// Eight numbers a span: start (from the start before), duration, waiting at its beginning, class, name, layer (-1: none), spans drawn as this
    /// one, and 2 times where its time comes from plus 1 where it decides the end of the step.
    spans: Vec<i64>,
}

/// Numbers for strings, in order of their first use.
#[derive(Default)]
struct Numbered(Vec<&'static str>);

impl Numbered {
    fn of(&mut self, name: &'static str) -> i64 {
        let at = self.0.iter().position(|n| *n == name).unwrap_or_else(|| {
            self.0.push(name);
            self.0.len() - 1
        });
        at as i64
    }
}

fn ns(time: Time) -> i64 {
    i64::try_from(time.since(Time::ZERO).as_ps() / 1000).unwrap_or(i64::MAX)
}

/// A time line as numbers.
pub(super) fn json(timeline: &Timeline) -> TimelineJson {
    let (mut classes, mut names) = (Numbered::default(), Numbered::default());
    let mut lane = |lane: &Lane| {
        let mut spans = Vec::with_capacity(8 * lane.spans.len());
        let mut before = 0;
        for span in &lane.spans {
            let (start, end) = (ns(span.start), ns(span.end));
            spans.extend([
                start - before,
                end - start,
                i64::try_from(span.waits.as_ps() / 1000).unwrap_or(i64::MAX),
                classes.of(span.class),
                names.of(span.name),
                span.layer.map_or(-1, i64::from),
                i64::from(span.count),
                2 * origin(span) + i64::from(span.decides),
            ]);
            before = start;
        }
        LaneJson { rank: lane.rank.0, name: lane_name(lane.track), spans }
    };
    let lanes = timeline.lanes.iter().map(&mut lane).collect();
    TimelineJson {
        total_ns: timeline.total.as_ps().div_ceil(1000),
        classes: classes.0,
        names: names.0,
        origins: ORIGINS,
        merged: timeline.merged,
        lanes,
    }
}

fn origin(span: &DrawnSpan) -> i64 {
    match span.provenance {
        Provenance::Measured => 0,
        Provenance::Interpolated => 1,
        Provenance::Modelled => 2,
    }
}

/// The frame, and sums by rank for those who do not see the picture.
pub(super) fn section(timeline: &Timeline) -> String {
    let ranks = timeline.sums.len();
    let mut thinned = String::new();
    if timeline.merged {
        thinned.push_str(" There are many spans, so neighbours of one class and layer are drawn as one; the table counts each by itself.");
    }
    if timeline.ranks_drawn < ranks {
        thinned.push_str(&format!(" Of {ranks} ranks the first {} are drawn; the table has all.", timeline.ranks_drawn));
    }
    let mut classes: Vec<&str> = timeline.lanes.iter().flat_map(|l| &l.spans).map(|s| s.class).filter(|c| *c != "wait").collect();
    classes.sort_unstable();
    classes.dedup();
    let named: Vec<(String, String)> = classes.iter().map(|c| (format!("k-{c}"), words(c))).collect();
    let waiting = [("waiting".to_owned(), "waiting".to_owned())];
    let colours = legend(named.iter().chain(&waiting).map(|(colour, name)| (colour.as_str(), name.as_str())));
    let buttons: String = [
        ("zoom-in", "Zoom in"),
        ("zoom-out", "Zoom out"),
        ("earlier", "Earlier"),
        ("later", "Later"),
        ("whole", "Whole step"),
        ("layer", "Two layers"),
    ]
    .map(|(id, name)| format!("<button type=\"button\" id=\"{id}\">{name}</button>"))
    .concat();
    const HINT: &str = "Point at a span, or choose one with the keyboard, to read what it is.";
    format!(
        "<p>What every rank's host and streams do.{thinned}</p>\n<noscript><p class=\"note\">The picture is drawn by a script, which is off; the table below \
         needs none.</p></noscript>\n<div id=\"time-view\" hidden>\n<div class=\"tools\" role=\"group\" aria-label=\"View of the time line\">{buttons}\
         <label><input type=\"checkbox\" id=\"deciding\"> only what decides the end</label></div>\n\
         <canvas id=\"overview\" aria-hidden=\"true\"></canvas>\n\
         <canvas id=\"lanes\" tabindex=\"0\" role=\"slider\" aria-label=\"Time line of all ranks\" aria-valuemin=\"0\" aria-valuemax=\"100\" aria-valuenow=\"0\" \
         aria-describedby=\"keys detail\"></canvas>\n<p id=\"detail\" role=\"status\" data-hint=\"{HINT}\">{HINT}</p>\n{colours}\
         <p class=\"note\" id=\"keys\">With the picture in focus: <kbd>+</kbd> <kbd>-</kbd> zoom, <kbd>←</kbd> <kbd>→</kbd> move, <kbd>0</kbd> the whole step, \
         <kbd>1</kbd> two layers, <kbd>,</kbd> <kbd>.</kbd> span before and after, <kbd>↑</kbd> <kbd>↓</kbd> lane. With a mouse: drag, and turn the wheel with \
         Ctrl or with the picture in focus.</p>\n</div>\n{}",
        sums(timeline)
    )
}

fn sums(timeline: &Timeline) -> String {
    use Column::{Number, Words};
    let mut table = Table::new(
        "Milliseconds of every rank",
        &[
            ("rank", Words),
            ("kernels", Number),
            ("transfers", Number),
            ("waits for others", Number),
            ("nothing runs", Number),
            ("commands", Number),
        ],
    );
    let ms = |d: Duration| format!("{:.3}", d.as_ps() as f64 / 1e9);
    for (rank, s) in timeline.sums.iter().enumerate() {
        table.row(&[format!("rank {rank}"), ms(s.kernels), ms(s.transfers), ms(s.waits), ms(s.idle), s.commands.to_string()]);
    }
    let note = "<p class=\"note\">Kernels of all streams are added up, so those that run side by side count twice.</p>\n";
    format!("{}{note}", table.html())
}
