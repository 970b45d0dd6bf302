//! Processes' connections, here between threads: the frames and the listening are the same.

use super::*;
use crate::launcher::Convention;
use std::sync::atomic::AtomicU16;
use std::thread;

const LIMIT: Duration = Duration::from_secs(20);

/// A port that was free a moment ago.
fn port() -> u16 {
    static TRIES: AtomicU16 = AtomicU16::new(0);
    TRIES.fetch_add(1, Ordering::Relaxed);
    TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port()
}

fn launcher(rank: u32, size: u32, port: u16) -> Launcher {
    Launcher { rank, size, local_rank: rank, address: "127.0.0.1".into(), port, convention: Convention::Torch }
}

/// Runs `body` as every rank of `size`, each on a thread.
fn together<T: Send>(size: u32, body: impl Fn(Link, u32) -> T + Sync) -> Vec<T> {
    let port = port();
    thread::scope(|scope| {
        let one = |rank| {
            let body = &body;
            scope.spawn(move || body(Link::establish(&launcher(rank, size, port), "same", LIMIT).unwrap(), rank))
        };
        let threads: Vec<_> = (0..size).map(one).collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    })
}

#[test]
fn everybody_gets_everything_in_the_order_of_ranks() {
    let all = together(8, |mut link, rank| {
        (0..3u8).map(|round| link.exchange("x", vec![round; rank as usize + 1], LIMIT).unwrap()).collect::<Vec<_>>()
    });
    for rounds in all {
        for (round, parts) in rounds.iter().enumerate() {
            assert_eq!(*parts, (0..8).map(|r| vec![round as u8; r + 1]).collect::<Vec<_>>());
        }
    }
}

#[test]
fn a_failure_reaches_everybody_at_once() {
    let failed = Failed { rank: RankId(5), phase: "serve".into(), command: "n7".into(), problem: "broken".into() };
    let begin = Instant::now();
    let all = together(8, |mut link, rank| {
        if rank == 5 {
            link.report(&failed, false);
            // Its own exchange would never come.
            thread::sleep(Duration::from_millis(300));
            return failed.clone();
        }
        link.exchange("x", Vec::new(), LIMIT).unwrap_err()
    });
    assert!(all.iter().all(|f| *f == failed), "{all:?}");
    assert!(begin.elapsed() < LIMIT / 2);
}

#[test]
fn a_process_that_ends_is_named() {
    let all = together(4, |mut link, rank| {
        if rank == 2 {
            return None;
        }
        Some(link.exchange("x", Vec::new(), LIMIT).unwrap_err())
    });
    for failed in all.into_iter().flatten() {
        assert_eq!(failed.rank, RankId(2), "{failed}");
        assert!(failed.problem.contains("it ended"), "{failed}");
    }
    let all = together(4, |mut link, rank| (rank > 0).then(|| link.exchange("x", Vec::new(), LIMIT).unwrap_err()));
    assert!(all.into_iter().flatten().all(|f| f.rank == RankId(0)));
}

#[test]
fn processes_at_different_points_are_told_apart() {
    let all = together(2, |mut link, rank| {
        let at = if rank == 0 { "load" } else { "connect" };
        let result = link.exchange(at, Vec::new(), Duration::from_secs(2));
        thread::sleep(Duration::from_millis(200));
        result
    });
    assert!(all[0].as_ref().unwrap_err().problem.contains("rank 1 is at `connect`, rank 0 at `load`"), "{all:?}");
}

#[test]
fn who_does_not_belong_is_refused_on_both_sides() {
    let pair = |size, digest: &'static str, rank| {
        let port = port();
        thread::scope(|scope| {
            let other = scope.spawn(move || Link::establish(&launcher(rank, size, port), digest, Duration::from_secs(5)));
            let first = Link::establish(&launcher(0, 2, port), "same", Duration::from_secs(5));
            (first.unwrap_err().to_string(), other.join().unwrap().unwrap_err().to_string())
        })
    };
    let (first, other) = pair(2, "other", 1);
    assert!(first.contains("rank 1") && first.contains("other arguments"), "{first}");
    assert!(other.contains("rank 0 says") && other.contains("other arguments"), "{other}");
    let (first, other) = pair(3, "same", 2);
    assert!(first.contains("rank 2 of 3") && other.contains("expects ranks 1 to 1"), "{first} / {other}");
}

#[test]
fn nobody_waits_for_ever() {
    let short = Duration::from_millis(300);
    let place = port();
    let e = Link::establish(&launcher(0, 3, place), "same", short).unwrap_err().to_string();
    assert!(e.contains("rank 1, rank 2 did not come"), "{e}");
    let e = Link::establish(&launcher(1, 3, place), "same", short).unwrap_err().to_string();
    assert!(e.contains("rank 0") && e.contains("did not come"), "{e}");
}

#[test]
fn a_stranger_that_knocks_is_ignored() {
    use std::io::Write as _;
    let place = port();
    thread::scope(|scope| {
        let first = scope.spawn(move || Link::establish(&launcher(0, 2, place), "same", LIMIT));
        for noise in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0xff; 40], b""] {
            let mut stream = loop {
                match TcpStream::connect(("127.0.0.1", place)) {
                    Ok(s) => break s,
                    Err(_) => thread::sleep(RETRY),
                }
            };
            stream.write_all(noise).unwrap();
        }
        let other = scope.spawn(move || Link::establish(&launcher(1, 2, place), "same", LIMIT));
        first.join().unwrap().unwrap();
        other.join().unwrap().unwrap();
    });
}
