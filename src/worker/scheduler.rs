//! Stands in for the scheduler's loop while the plumbing is tested: waits and counts turns.
use super::lifecycle::{Context, Exit, Turn};
use crate::pg::latch::Waiter;
use crate::pg::shmem::EngineState;

pub fn run(context: &mut Context) -> Exit {
    let waiter = Waiter::new(None);
    context.set_state(EngineState::Running);
    loop {
        if context.asked_to_leave() {
            return Exit::Left;
        }
        let _ = context.slot.take_wake();
        let pause = match context.begin_turn() {
            Turn::Gone => return Exit::Gone,
            Turn::Changed => return Exit::Restart,
            Turn::Busy => {
                context.set_state(EngineState::WaitingForExtension);
                100
            }
            Turn::Ready => {
                context.set_state(EngineState::Running);
                context.commit_turn();
                1000
            }
        };
        context.wait(&waiter, pause);
    }
}
