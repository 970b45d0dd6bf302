//! Eight processes, one a rank, on the fake driver: this test starts itself eight times with the variables that launchers set. The ranks'
//! collectives meet in the parent, as they would meet in NCCL.

mod support;

use moetwin_cuda::exec::fake::{Fabric, FakeHost, LocalFabric};
use moetwin_cuda::exec::inject::Injection;
use moetwin_cuda::launcher::Launcher;
use moetwin_cuda::link::Link;
use moetwin_models::RankId;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};
use support::{exchanging, model, options, programs, serve};

/// Where the parent keeps the fabric; set only in the children.
const FABRIC: &str = "MOETWIN_TEST_FABRIC";
/// The fault of a child.
const FAULT: &str = "MOETWIN_TEST_FAULT";
/// Seconds that anything may take in a child.
const DEADLINE: u64 = 3;

/// A fabric that is asked over a connection, a line a question.
struct FarFabric(Mutex<BufReader<TcpStream>>);

impl FarFabric {
    fn ask(&self, question: &str) -> String {
        let mut stream = self.0.lock().unwrap();
        let mut answer = String::new();
        stream.get_mut().write_all(format!("{question}\n").as_bytes()).ok();
        stream.read_line(&mut answer).ok();
        answer.trim_end().to_owned()
    }
}

impl Fabric for FarFabric {
    fn join(&self, id: u64, index: u32, members: u32) {
        self.ask(&format!("join {id} {index} {members}"));
    }
    fn joined(&self, id: u64) -> bool {
        self.ask(&format!("joined {id}")) == "true"
    }
    fn arrive(&self, id: u64, round: u64, index: u32, calls: &str) {
        self.ask(&format!("arrive {id} {round} {index} {calls}"));
    }
    fn complete(&self, id: u64, round: u64) -> Result<bool, String> {
        match self.ask(&format!("complete {id} {round}")).as_str() {
            "true" => Ok(true),
            "false" => Ok(false),
            other => Err(other.to_owned()),
        }
    }
}

/// Answers the questions of one child.
fn answer(fabric: &LocalFabric, stream: TcpStream) {
    let mut out = stream.try_clone().unwrap();
    for line in BufReader::new(stream).lines().map_while(Result::ok) {
        let words: Vec<&str> = line.splitn(5, ' ').collect();
        let number = |i: usize| words[i].parse::<u64>().unwrap();
        let text = match words[0] {
            "join" => {
                fabric.join(number(1), number(2) as u32, number(3) as u32);
                "done".to_owned()
            }
            "joined" => fabric.joined(number(1)).to_string(),
            "arrive" => {
                fabric.arrive(number(1), number(2), number(3) as u32, words[4]);
                "done".to_owned()
            }
            _ => fabric.complete(number(1), number(2)).map_or_else(|e| e, |c| c.to_string()),
        };
        if out.write_all(format!("{text}\n").as_bytes()).is_err() {
            return;
        }
    }
}

/// The body of a child; in the parent it does nothing.
#[test]
fn child() {
    let Ok(place) = std::env::var(FABRIC) else { return };
    let launcher = Launcher::read(|name| std::env::var(name).ok()).unwrap().unwrap();
    let stream = TcpStream::connect(place).unwrap();
    stream.set_nodelay(true).unwrap();
    let host = FakeHost::new(Arc::new(FarFabric(Mutex::new(BufReader::new(stream))))).in_real_time();
    let inject = std::env::var(FAULT).ok().map(|text| text.parse::<Injection>().unwrap());
    let spec = model();
    let programs = programs(&spec, &exchanging());
    let link = Link::establish(&launcher, "test", Duration::from_secs(20)).unwrap();
    let outcome = serve(host.clone(), vec![RankId(launcher.rank)], Some(link), options(DEADLINE, inject), &spec, &programs);
    let wrong = host.wrong();
    let mut err = std::io::stderr().lock();
    let text = match outcome {
        Ok(()) if wrong.is_empty() => "outcome: served".to_owned(),
        Ok(()) => format!("outcome: wrong: {wrong:?}"),
        Err(e) => format!("outcome: {e}"),
    };
    writeln!(err, "{text}").unwrap();
    // As the product ends: whatever is stuck ends with the process.
    std::process::exit(if text == "outcome: served" { 0 } else { 3 });
}

struct Ended {
    code: Option<i32>,
    said: String,
}

/// Starts eight children and collects how they end; none may take longer than `limit`.
fn run(fault: Option<&str>, limit: Duration, meddle: impl Fn(&mut [Child])) -> Vec<Ended> {
    let fabric = Arc::new(LocalFabric::default());
    let hub = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let place = hub.local_addr().unwrap().to_string();
    let meeting = TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port();
    thread::spawn(move || {
        for stream in hub.incoming().map_while(Result::ok) {
            stream.set_nodelay(true).unwrap();
            let fabric = Arc::clone(&fabric);
            thread::spawn(move || answer(&fabric, stream));
        }
    });
    let start = |rank: u32| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "child", "--nocapture", "--test-threads=1"]).env(FABRIC, &place);
        command.env("RANK", rank.to_string()).env("WORLD_SIZE", "8").env("LOCAL_RANK", rank.to_string());
        command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", meeting.to_string());
        if let Some(fault) = fault {
            command.env(FAULT, fault);
        }
        command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let mut children: Vec<Child> = (0..8).map(start).collect();
    let end = Instant::now() + limit;
    meddle(&mut children);
    let wait = |mut child: Child| {
        while child.try_wait().unwrap().is_none() {
            if Instant::now() > end {
                child.kill().ok();
            }
            thread::sleep(Duration::from_millis(10));
        }
        let out = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&out.stderr).lines().filter(|l| l.starts_with("outcome: ")).collect::<Vec<_>>().join("\n");
        Ended { code: out.status.code(), said }
    };
    children.into_iter().map(wait).collect()
}

#[test]
fn eight_processes_serve() {
    for (rank, ended) in run(None, Duration::from_secs(60), |_| ()).into_iter().enumerate() {
        assert_eq!((ended.code, ended.said.as_str()), (Some(0), "outcome: served"), "rank {rank}");
    }
}

/// Everybody else ends with exit code 3 and names the same rank and phase.
fn check(fault: &str, rank: usize, phase: &str, own: Option<i32>) {
    let begin = Instant::now();
    let all = run(Some(fault), Duration::from_secs(60), |_| ());
    for (i, ended) in all.iter().enumerate() {
        if i == rank {
            assert_eq!(ended.code, own, "{fault}: rank {i}: {}", ended.said);
        } else {
            assert_eq!(ended.code, Some(3), "{fault}: rank {i}: {}", ended.said);
        }
        if i != rank || own == Some(3) {
            let named = ended.said.starts_with(&format!("outcome: rank {rank}: phase {phase}, "));
            assert!(named, "{fault}: rank {i}: {}", ended.said);
        }
    }
    assert!(begin.elapsed() < Duration::from_secs(40), "{fault} took {:?}", begin.elapsed());
}

#[test]
fn a_process_that_dies_ends_all_others() {
    check("5:connect.0:die", 5, "connect", Some(137));
    check("0:serve.3:die", 0, "serve", Some(137));
}

#[test]
fn a_rank_without_memory_ends_all_processes() {
    check("3:allocate.4:oom", 3, "allocate", Some(3));
}

#[test]
fn a_rank_that_stalls_ends_all_processes() {
    check("6:warm-up.20:stall", 6, "warm-up", Some(3));
    check("2:connect.0:hang", 2, "connect", Some(3));
}
