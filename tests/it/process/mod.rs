//! Programs that end with the run that started them.

mod guard;
mod sweep;
