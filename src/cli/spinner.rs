//! A sign of life on standard error while something takes long; nothing where that is no terminal.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

const TICK: Duration = Duration::from_millis(100);

/// Gone from the screen when it is dropped.
pub(super) struct Spinner(ProgressBar);

impl Spinner {
    pub(super) fn start(doing: impl Into<String>) -> Spinner {
        Spinner::with_template("{spinner} {msg} [{elapsed}]", doing.into())
    }

    /// With a percentage, see [`Spinner::reach`].
    pub(super) fn with_percentage(doing: impl Into<String>) -> Spinner {
        Spinner::with_template("{spinner} {msg}: {pos}% [{elapsed}]", doing.into())
    }

    fn with_template(template: &str, doing: String) -> Spinner {
        let style = ProgressStyle::with_template(template);
        let bar = ProgressBar::new_spinner().with_message(doing);
        let bar = match style {
            Ok(style) => bar.with_style(style),
            Err(_) => bar,
        };
        // At once: the first tick of the other thread comes too late for what is quick.
        bar.tick();
        bar.enable_steady_tick(TICK);
        Spinner(bar)
    }

    /// Whether it is shown.
    pub(super) fn is_drawn(&self) -> bool {
        !self.0.is_hidden()
    }

    pub(super) fn say(&self, doing: String) {
        self.0.set_message(doing);
    }

    /// Stores the percentage, an atomic, for the ticker to draw: a terminal that is stopped (Ctrl-S) does not hold
    /// up the work.
    pub(super) fn reach(&self, percent: u64) {
        self.0.set_position(percent);
    }
}

impl Drop for Spinner {
    fn drop(&mut self) {
        // The last figure, which no tick may have drawn.
        self.0.disable_steady_tick();
        self.0.tick();
        self.0.finish_and_clear();
    }
}
