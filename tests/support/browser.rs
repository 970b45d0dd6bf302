//! A headless Chromium that is asked through its DevTools pipe: JSON messages that end in a zero byte, on descriptors 3 and 4.

use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// Nothing that is asked takes as long.
const PATIENCE: Duration = Duration::from_secs(60);

/// Where the browser is: `MOETWIN_BROWSER`, else the names that it has where it is installed.
pub(crate) fn find() -> Option<String> {
    let named = std::env::var("MOETWIN_BROWSER").ok().filter(|b| b != "required");
    let names = ["chromium", "chromium-browser", "google-chrome"].map(str::to_owned);
    named.into_iter().chain(names).find(|b| Command::new(b).arg("--version").output().is_ok_and(|o| o.status.success()))
}

/// A running browser with one page.
pub(crate) struct Browser {
    child: Child,
    to: ChildStdin,
    from: Receiver<Value>,
    session: Option<String>,
    last: u64,
    /// What the page did that nobody had asked for: events, in order.
    pub(crate) events: Vec<Value>,
}

impl Browser {
    /// Starts it; its profile lies in `folder`.
    pub(crate) fn start(browser: &str, folder: &Path) -> Self {
        // A shell puts the pipes where the browser looks for them.
        let line = "exec \"$0\" --headless=new --no-sandbox --disable-gpu --no-first-run --disable-background-networking --disable-component-update \
                    --remote-debugging-pipe --user-data-dir=\"$1\" about:blank 3<&0 4>&1 >/dev/null 2>&1";
        let mut child = Command::new("sh")
            .args(["-c", line, browser])
            .arg(folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a shell starts");
        let (send, from) = channel();
        let out = child.stdout.take().expect("piped");
        std::thread::spawn(move || {
            for message in BufReader::new(out).split(0).map_while(Result::ok) {
                let Ok(value) = serde_json::from_slice(&message) else { break };
                if send.send(value).is_err() {
                    break;
                }
            }
        });
        let to = child.stdin.take().expect("piped");
        let mut out = Self { child, to, from, session: None, last: 0, events: Vec::new() };
        let target = out.ask("Target.createTarget", json!({"url": "about:blank"}))["targetId"].clone();
        let session = out.ask("Target.attachToTarget", json!({"targetId": target, "flatten": true}))["sessionId"].clone();
        out.session = Some(session.as_str().expect("a session").to_owned());
        for domain in ["Page", "Runtime", "Log", "Network"] {
            out.ask(&format!("{domain}.enable"), json!({}));
        }
        out
    }
    /// Asks and waits for the answer.
    pub(crate) fn ask(&mut self, method: &str, params: Value) -> Value {
        self.last += 1;
        let mut message = json!({"id": self.last, "method": method, "params": params});
        if let Some(session) = &self.session {
            message["sessionId"] = json!(session);
        }
        self.to.write_all(message.to_string().as_bytes()).and_then(|()| self.to.write_all(&[0])).expect("the browser listens");
        let until = Instant::now() + PATIENCE;
        loop {
            let value = self.next(until, method);
            if value["id"] == self.last {
                assert!(value["error"].is_null(), "{method}: {}", value["error"]);
                return value["result"].clone();
            }
            self.events.push(value);
        }
    }
    fn next(&mut self, until: Instant, what: &str) -> Value {
        let left = until.saturating_duration_since(Instant::now());
        self.from.recv_timeout(left).unwrap_or_else(|e| panic!("{what}: the browser does not answer: {e}"))
    }
    /// Opens a file and waits until it is loaded.
    pub(crate) fn open(&mut self, file: &Path) {
        self.events.clear();
        self.ask("Page.navigate", json!({"url": format!("file://{}", file.display())}));
        let until = Instant::now() + PATIENCE;
        while !self.events.iter().any(|e| e["method"] == "Page.loadEventFired") {
            let event = self.next(until, "load");
            self.events.push(event);
        }
    }
    /// Value of an expression in the page, awaited where it is a promise.
    pub(crate) fn value(&mut self, expression: &str) -> Value {
        let params = json!({"expression": expression, "returnByValue": true, "awaitPromise": true});
        let answer = self.ask("Runtime.evaluate", params);
        assert!(answer["exceptionDetails"].is_null(), "{expression}: {}", answer["exceptionDetails"]);
        answer["result"]["value"].clone()
    }
    /// Presses a key and lets the page draw.
    pub(crate) fn press(&mut self, key: &str) {
        let text = if key.chars().count() == 1 { json!(key) } else { Value::Null };
        let code = match key {
            "Tab" => 9,
            "ArrowLeft" => 37,
            "ArrowUp" => 38,
            "ArrowRight" => 39,
            "ArrowDown" => 40,
            _ => 0,
        };
        let mut down = json!({"type": "keyDown", "key": key, "code": key, "windowsVirtualKeyCode": code});
        if !text.is_null() {
            down["text"] = text;
        }
        self.ask("Input.dispatchKeyEvent", down);
        self.ask("Input.dispatchKeyEvent", json!({"type": "keyUp", "key": key, "code": key, "windowsVirtualKeyCode": code}));
        self.drawn();
    }
    /// Waits until what was asked of the page is on the screen.
    pub(crate) fn drawn(&mut self) {
        self.value("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))");
    }
    /// Colours and width of the screen.
    pub(crate) fn screen(&mut self, dark: bool, width: u32) {
        let scheme = if dark { "dark" } else { "light" };
        self.ask("Emulation.setEmulatedMedia", json!({"media": "", "features": [{"name": "prefers-color-scheme", "value": scheme}]}));
        self.ask(
            "Emulation.setDeviceMetricsOverride",
            json!({"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}),
        );
        self.drawn();
    }
    /// The whole page as PNG in base64.
    pub(crate) fn picture(&mut self) -> String {
        let answer = self.ask("Page.captureScreenshot", json!({"format": "png", "captureBeyondViewport": true}));
        answer["data"].as_str().unwrap_or_default().to_owned()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // Asked to end, it takes its helpers along; killed, it would leave them.
        self.to.write_all(b"{\"id\":0,\"method\":\"Browser.close\"}\0").ok();
        let until = Instant::now() + Duration::from_secs(5);
        while Instant::now() < until && !matches!(self.child.try_wait(), Ok(Some(_))) {
            std::thread::sleep(Duration::from_millis(20));
        }
        self.child.kill().ok();
        self.child.wait().ok();
    }
}
