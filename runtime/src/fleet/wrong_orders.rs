//! Orders that must not compile, each followed by its twin: the same text but for one line, and it compiles. So it is that line which is refused.
//! A test checks that twins are one line apart.

/// A pass before capture.
/// ```compile_fail,E0599
/// use moetwin_runtime::fleet::{Closed, Opened, Loaded, Connected, Captured, Crew, Failure, Fleet};
/// use moetwin_runtime::init::Bucket;
/// fn order<C: Crew>(fleet: Fleet<Connected, C>) -> Result<(), Failure<C>> {
///     fleet.replay(Bucket::target(8)).map(drop)
/// }
/// ```
/// ```
/// use moetwin_runtime::fleet::{Closed, Opened, Loaded, Connected, Captured, Crew, Failure, Fleet};
/// use moetwin_runtime::init::Bucket;
/// fn order<C: Crew>(fleet: Fleet<Captured, C>) -> Result<(), Failure<C>> {
///     fleet.replay(Bucket::target(8)).map(drop)
/// }
/// ```
pub struct PassBeforeCapture;

/// A pass before communicators exist.
/// ```compile_fail,E0599
/// use moetwin_runtime::fleet::{Closed, Opened, Loaded, Connected, Captured, Crew, Failure, Fleet};
/// use moetwin_runtime::init::Bucket;
/// fn order<C: Crew>(fleet: Fleet<Loaded, C>) -> Result<(), Failure<C>> {
///     fleet.replay(Bucket::target(8)).map(drop)
/// }
/// ```
/// ```
/// use moetwin_runtime::fleet::{Closed, Opened, Loaded, Connected, Captured, Crew, Failure, Fleet};
/// use moetwin_runtime::init::Bucket;
/// fn order<C: Crew>(fleet: Fleet<Captured, C>) -> Result<(), Failure<C>> {
///     fleet.replay(Bucket::target(8)).map(drop)
/// }
/// ```
pub struct PassBeforeCommunicators;

/// An eager pass before capture (with graphs off, `capture` warms up and waits for all ranks).
/// ```compile_fail,E0599
/// use moetwin_runtime::fleet::{Closed, Opened, Loaded, Connected, Captured, Crew, Failure, Fleet};
/// use moetwin_runtime::init::Bucket;
/// fn order<C: Crew>(fleet: Fleet<Connected, C>) -> Result<(), Failure<C>> {
///     fleet.run_eagerly(Bucket::target(8)).map(drop)
/// }
/// ```
/// ```
/// use moetwin_runtime::fleet::{Closed, Opened, Loaded, Connected, Captured, Crew, Failure, Fleet};
/// use moetwin_runtime::init::Bucket;
/// fn order<C: Crew>(fleet: Fleet<Captured, C>) -> Result<(), Failure<C>> {
///     fleet.run_eagerly(Bucket::target(8)).map(drop)
/// }
/// ```
pub struct EagerPassBeforeCapture;

/// Weights before devices are open.
/// ```compile_fail,E0599
/// use moetwin_runtime::fleet::{Closed, Opened, Loaded, Connected, Captured, Crew, Failure, Fleet};
/// use moetwin_runtime::init::Bucket;
/// fn order<C: Crew>(fleet: Fleet<Closed, C>) -> Result<(), Failure<C>> {
///     fleet.load().map(drop)
/// }
/// ```
/// ```
/// use moetwin_runtime::fleet::{Closed, Opened, Loaded, Connected, Captured, Crew, Failure, Fleet};
/// use moetwin_runtime::init::Bucket;
/// fn order<C: Crew>(fleet: Fleet<Opened, C>) -> Result<(), Failure<C>> {
///     fleet.load().map(drop)
/// }
/// ```
pub struct WeightsBeforeDevices;

/// Communicators and pools before weights.
/// ```compile_fail,E0599
/// use moetwin_runtime::fleet::{Closed, Opened, Loaded, Connected, Captured, Crew, Failure, Fleet};
/// use moetwin_runtime::init::Bucket;
/// fn order<C: Crew>(fleet: Fleet<Opened, C>) -> Result<(), Failure<C>> {
///     fleet.connect().map(drop)
/// }
/// ```
/// ```
/// use moetwin_runtime::fleet::{Closed, Opened, Loaded, Connected, Captured, Crew, Failure, Fleet};
/// use moetwin_runtime::init::Bucket;
/// fn order<C: Crew>(fleet: Fleet<Loaded, C>) -> Result<(), Failure<C>> {
///     fleet.connect().map(drop)
/// }
/// ```
pub struct CommunicatorsBeforeWeights;

/// Capture before communicators exist.
/// ```compile_fail,E0599
/// use moetwin_runtime::fleet::{Closed, Opened, Loaded, Connected, Captured, Crew, Failure, Fleet};
/// use moetwin_runtime::init::Bucket;
/// fn order<C: Crew>(fleet: Fleet<Loaded, C>) -> Result<(), Failure<C>> {
///     fleet.capture().map(drop)
/// }
/// ```
/// ```
/// use moetwin_runtime::fleet::{Closed, Opened, Loaded, Connected, Captured, Crew, Failure, Fleet};
/// use moetwin_runtime::init::Bucket;
/// fn order<C: Crew>(fleet: Fleet<Connected, C>) -> Result<(), Failure<C>> {
///     fleet.capture().map(drop)
/// }
/// ```
pub struct CaptureBeforeCommunicators;

/// Capture a second time.
/// ```compile_fail,E0599
/// use moetwin_runtime::fleet::{Closed, Opened, Loaded, Connected, Captured, Crew, Failure, Fleet};
/// use moetwin_runtime::init::Bucket;
/// fn order<C: Crew>(fleet: Fleet<Captured, C>) -> Result<(), Failure<C>> {
///     fleet.capture().map(drop)
/// }
/// ```
/// ```
/// use moetwin_runtime::fleet::{Closed, Opened, Loaded, Connected, Captured, Crew, Failure, Fleet};
/// use moetwin_runtime::init::Bucket;
/// fn order<C: Crew>(fleet: Fleet<Connected, C>) -> Result<(), Failure<C>> {
///     fleet.capture().map(drop)
/// }
/// ```
pub struct CaptureTwice;

/// Open what is open.
/// ```compile_fail,E0599
/// use moetwin_runtime::fleet::{Closed, Opened, Loaded, Connected, Captured, Crew, Failure, Fleet};
/// use moetwin_runtime::init::Bucket;
/// fn order<C: Crew>(fleet: Fleet<Opened, C>) -> Result<(), Failure<C>> {
///     fleet.open().map(drop)
/// }
/// ```
/// ```
/// use moetwin_runtime::fleet::{Closed, Opened, Loaded, Connected, Captured, Crew, Failure, Fleet};
/// use moetwin_runtime::init::Bucket;
/// fn order<C: Crew>(fleet: Fleet<Closed, C>) -> Result<(), Failure<C>> {
///     fleet.open().map(drop)
/// }
/// ```
pub struct OpenTwice;

/// Close what is closed.
/// ```compile_fail,E0599
/// use moetwin_runtime::fleet::{Closed, Opened, Loaded, Connected, Captured, Crew, Failure, Fleet};
/// use moetwin_runtime::init::Bucket;
/// fn order<C: Crew>(fleet: Fleet<Closed, C>) -> Result<(), Failure<C>> {
///     fleet.close().map(drop)
/// }
/// ```
/// ```
/// use moetwin_runtime::fleet::{Closed, Opened, Loaded, Connected, Captured, Crew, Failure, Fleet};
/// use moetwin_runtime::init::Bucket;
/// fn order<C: Crew>(fleet: Fleet<Captured, C>) -> Result<(), Failure<C>> {
///     fleet.close().map(drop)
/// }
/// ```
pub struct CloseTwice;

/// A pass on what is left of a failure.
/// ```compile_fail,E0599
/// use moetwin_runtime::fleet::{Captured, Closed, Connected, Crew, Failed, Failure, Fleet};
/// use moetwin_runtime::init::Bucket;
/// fn order<C: Crew>(fleet: Fleet<Captured, C>) {
///     if let Err(failure) = fleet.replay(Bucket::target(8)) {
///         let _ = failure.fleet.replay(Bucket::target(8));
///     }
/// }
/// ```
/// ```
/// use moetwin_runtime::fleet::{Captured, Closed, Connected, Crew, Failed, Failure, Fleet};
/// use moetwin_runtime::init::Bucket;
/// fn order<C: Crew>(fleet: Fleet<Captured, C>) {
///     if let Err(failure) = fleet.replay(Bucket::target(8)) {
///         let _ = failure.fleet.close();
///     }
/// }
/// ```
pub struct PassAfterFailure;

/// A state that was left is used again.
/// ```compile_fail,E0382
/// use moetwin_runtime::fleet::{Captured, Closed, Connected, Crew, Failed, Failure, Fleet};
/// use moetwin_runtime::init::Bucket;
/// fn order<C: Crew>(fleet: Fleet<Connected, C>) -> Result<(), Failure<C>> {
///     let captured = fleet.capture()?;
///     fleet.capture().map(drop)
/// }
/// ```
/// ```
/// use moetwin_runtime::fleet::{Captured, Closed, Connected, Crew, Failed, Failure, Fleet};
/// use moetwin_runtime::init::Bucket;
/// fn order<C: Crew>(fleet: Fleet<Connected, C>) -> Result<(), Failure<C>> {
///     let captured = fleet.capture()?;
///     captured.close().map(drop)
/// }
/// ```
pub struct StateUsedAgain;

/// A pass after the end.
/// ```compile_fail,E0599
/// use moetwin_runtime::fleet::{Captured, Closed, Connected, Crew, Failed, Failure, Fleet};
/// use moetwin_runtime::init::Bucket;
/// fn order<C: Crew>(fleet: Fleet<Captured, C>) -> Result<(), Failure<C>> {
///     let closed = fleet.close()?;
///     closed.replay(Bucket::target(8)).map(drop)
/// }
/// ```
/// ```
/// use moetwin_runtime::fleet::{Captured, Closed, Connected, Crew, Failed, Failure, Fleet};
/// use moetwin_runtime::init::Bucket;
/// fn order<C: Crew>(fleet: Fleet<Captured, C>) -> Result<(), Failure<C>> {
///     let closed = fleet.close()?;
///     closed.open().map(drop)
/// }
/// ```
pub struct PassAfterEnd;

/// A state is claimed instead of reached.
/// ```compile_fail,E0308
/// use moetwin_runtime::fleet::{Captured, Closed, Connected, Crew, Failed, Failure, Fleet};
/// use moetwin_runtime::init::Bucket;
/// fn order<C: Crew>(fleet: Fleet<Closed, C>) -> Fleet<Captured, C> {
///     fleet
/// }
/// ```
/// ```
/// use moetwin_runtime::fleet::{Captured, Closed, Connected, Crew, Failed, Failure, Fleet};
/// use moetwin_runtime::init::Bucket;
/// fn order<C: Crew>(fleet: Fleet<Captured, C>) -> Fleet<Captured, C> {
///     fleet
/// }
/// ```
pub struct StateClaimed;
