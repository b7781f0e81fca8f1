//! A sign of life on standard error while something takes long; nothing where that is no terminal.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

const TICK: Duration = Duration::from_millis(100);

/// Gone from the screen when it is dropped.
pub(super) struct Spinner(ProgressBar);

impl Spinner {
    pub(super) fn start(doing: impl Into<String>) -> Spinner {
        let style = ProgressStyle::with_template("{spinner} {msg} [{elapsed}]");
        let bar = ProgressBar::new_spinner().with_message(doing.into());
        let bar = match style {
            Ok(style) => bar.with_style(style),
            Err(_) => bar,
        };
        // At once: the first tick of the other thread comes too late for what is quick.
        bar.tick();
        bar.enable_steady_tick(TICK);
        Spinner(bar)
    }

    pub(super) fn say(&self, doing: String) {
        self.0.set_message(doing);
    }
}

impl Drop for Spinner {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
