//! Eight processes, one a rank, on the fake driver: this test starts itself eight times with the variables that launchers set. The ranks'
//! collectives meet in the parent, as they would meet in NCCL.

mod support;

use moetwin_cuda::exec::AllReduceBackend;
use moetwin_cuda::exec::fake::{Asked, Fabric, FakeHost, LocalFabric};
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
use support::{exchanging, fused_programs, model, options, programs, serve, summing};

/// Where the parent keeps the fabric; set only in the children.
const FABRIC: &str = "MOETWIN_TEST_FABRIC";
/// The fault of a child.
const FAULT: &str = "MOETWIN_TEST_FAULT";
/// Seconds that the children have to find each other.
const MEETING: &str = "MOETWIN_TEST_MEETING";
/// Set where sums take one shot over windows that the children map of each other.
const ONE_SHOT: &str = "MOETWIN_TEST_ONE_SHOT";
/// Variables of both conventions, which a child must not inherit.
const VARIABLES: [&str; 11] = [
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
    "SLURM_PROCID",
    "SLURM_NTASKS",
    "SLURM_LOCALID",
    "SLURM_STEP_ID",
    "SLURM_STEP_NODELIST",
    "SLURM_JOB_ID",
];
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
    let one_shot = std::env::var_os(ONE_SHOT).is_some();
    let programs = if one_shot { fused_programs(&spec, &summing()) } else { programs(&spec, &exchanging()) };
    let mut options = options(DEADLINE, inject);
    options.all_reduce = if one_shot { AllReduceBackend::OneShot } else { AllReduceBackend::Nccl };
    let limit = std::env::var(MEETING).map_or(20, |s| s.parse().unwrap());
    let link = match Link::establish(&launcher, "test", Duration::from_secs(limit)) {
        Ok(link) => link,
        Err(e) => {
            writeln!(std::io::stderr(), "outcome: {e}").unwrap();
            std::process::exit(3);
        }
    };
    let outcome = serve(host.clone(), vec![RankId(launcher.rank)], Some(link), options, &spec, &programs);
    let mut wrong = host.wrong();
    let meets = host.log().iter().filter(|(_, a)| matches!(a, Asked::Meet(_))).count();
    if outcome.is_ok() && one_shot != (meets > 0) {
        wrong.push(format!("{meets} sums took one shot"));
    }
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

/// Whose variables the children are started with.
#[derive(Clone, Copy, PartialEq)]
enum Variables {
    Torch,
    Slurm,
}

/// How eight children are started.
struct Start<'a> {
    variables: Variables,
    fault: Option<&'a str>,
    one_shot: bool,
    /// The ranks that are started at all.
    ranks: std::ops::Range<u32>,
    /// Where they meet, a free port unless it is given.
    port: Option<u16>,
    /// Seconds that they have to find each other.
    meeting: u64,
}

impl Start<'_> {
    const TORCH: Self = Self { variables: Variables::Torch, fault: None, one_shot: false, ranks: 0..8, port: None, meeting: 20 };
}

/// Starts children and collects how they end; none may take longer than `limit`.
fn run(start: &Start<'_>, limit: Duration, meddle: impl Fn(&mut [Child])) -> Vec<Ended> {
    let fabric = Arc::new(LocalFabric::default());
    let hub = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let place = hub.local_addr().unwrap().to_string();
    let free = || TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port();
    let meeting = start.port.unwrap_or_else(free);
    thread::spawn(move || {
        for stream in hub.incoming().map_while(Result::ok) {
            stream.set_nodelay(true).unwrap();
            let fabric = Arc::clone(&fabric);
            thread::spawn(move || answer(&fabric, stream));
        }
    });
    let child = |rank: u32| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "child", "--nocapture", "--test-threads=1"]).env(FABRIC, &place);
        for variable in VARIABLES {
            command.env_remove(variable);
        }
        command.env("MASTER_PORT", meeting.to_string()).env(MEETING, start.meeting.to_string());
        match start.variables {
            Variables::Torch => {
                command.env("RANK", rank.to_string()).env("WORLD_SIZE", "8").env("LOCAL_RANK", rank.to_string());
                command.env("MASTER_ADDR", "127.0.0.1");
            }
            // Two hosts of four, both this one: the first name of the list is where they meet.
            Variables::Slurm => {
                command.env("SLURM_PROCID", rank.to_string()).env("SLURM_NTASKS", "8").env("SLURM_LOCALID", (rank % 4).to_string());
                command.env("SLURM_STEP_ID", "0").env("SLURM_STEP_NODELIST", "localhost,elsewhere7").env("SLURM_JOB_ID", "4711");
            }
        }
        if start.one_shot {
            command.env(ONE_SHOT, "1");
        }
        if let Some(fault) = start.fault {
            command.env(FAULT, fault);
        }
        command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let mut children: Vec<Child> = start.ranks.clone().map(child).collect();
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
fn eight_processes_serve_under_either_launcher() {
    for variables in [Variables::Torch, Variables::Slurm] {
        let start = Start { variables, ..Start::TORCH };
        for (rank, ended) in run(&start, Duration::from_secs(60), |_| ()).into_iter().enumerate() {
            assert_eq!((ended.code, ended.said.as_str()), (Some(0), "outcome: served"), "rank {rank}");
        }
    }
}

#[test]
fn a_rank_that_was_not_started_is_named_by_all_others() {
    let (begin, start) = (Instant::now(), Start { ranks: 0..7, meeting: 2, ..Start::TORCH });
    for (rank, ended) in run(&start, Duration::from_secs(60), |_| ()).iter().enumerate() {
        assert_eq!(ended.code, Some(3), "rank {rank}: {}", ended.said);
        assert!(ended.said.contains("rank 7 did not come to 127.0.0.1:"), "rank {rank}: {}", ended.said);
    }
    assert!(begin.elapsed() < Duration::from_secs(20), "{:?}", begin.elapsed());
}

#[test]
fn a_port_that_another_program_has_ends_all_with_the_address() {
    // It takes connections and says nothing, as a service that speaks first or waits would.
    let taken = TcpListener::bind(("0.0.0.0", 0)).unwrap();
    let port = taken.local_addr().unwrap().port();
    let (begin, start) = (Instant::now(), Start { port: Some(port), meeting: 1, ..Start::TORCH });
    for (rank, ended) in run(&start, Duration::from_secs(60), |_| ()).iter().enumerate() {
        assert_eq!(ended.code, Some(3), "rank {rank}: {}", ended.said);
        let told = if rank == 0 { "rank 0 cannot listen on 127.0.0.1:" } else { "rank 0 (" };
        assert!(ended.said.contains(told) && ended.said.contains(&port.to_string()), "rank {rank}: {}", ended.said);
    }
    assert!(begin.elapsed() < Duration::from_secs(40), "{:?}", begin.elapsed());
}

/// Everybody else ends with exit code 3 and names the same rank and phase.
fn check(fault: &str, rank: usize, phase: &str, own: Option<i32>) {
    check_with(Start { fault: Some(fault), ..Start::TORCH }, rank, phase, own);
}

fn check_with(start: Start<'_>, rank: usize, phase: &str, own: Option<i32>) {
    let (begin, fault) = (Instant::now(), start.fault.unwrap_or_default());
    let all = run(&start, Duration::from_secs(60), |_| ());
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
fn processes_map_each_others_windows_and_end_together() {
    let start = |fault| Start { fault, one_shot: true, ..Start::TORCH };
    for (rank, ended) in run(&start(None), Duration::from_secs(60), |_| ()).into_iter().enumerate() {
        assert_eq!((ended.code, ended.said.as_str()), (Some(0), "outcome: served"), "rank {rank}");
    }
    check_with(start(Some("4:warm-up.20:die")), 4, "warm-up", Some(137));
    check_with(start(Some("1:warm-up.20:stall")), 1, "warm-up", Some(3));
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
