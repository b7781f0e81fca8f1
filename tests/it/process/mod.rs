//! Commands and their guards: processes end with the run that started them.

mod guard;
mod sweep;
