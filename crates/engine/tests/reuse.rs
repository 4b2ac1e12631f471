//! The rule for a start whose process id was used before: a table of all policies and statuses.

use xdb_engine::IdReusePolicy::*;
use xdb_engine::{IdReusePolicy, ProcessStatus, Reuse};

#[test]
fn a_process_id_is_used_again_according_to_the_policy() {
    let [running, completed, failed, timeout, terminated] = [
        ProcessStatus::Running,
        ProcessStatus::Completed,
        ProcessStatus::Failed,
        ProcessStatus::Timeout,
        ProcessStatus::Terminated,
    ];
    let follows = |policy: IdReusePolicy, status| policy.about(status) == Reuse::Follow;
    for status in [failed, timeout, terminated, completed] {
        assert!(follows(AllowIfNoRunning, status) && follows(TerminateIfRunning, status));
        assert_eq!(follows(AllowIfPreviousExitAbnormally, status), status != completed);
        assert!(!follows(DisallowReuse, status));
    }
    assert_eq!(TerminateIfRunning.about(running), Reuse::Terminate);
    for policy in [AllowIfNoRunning, AllowIfPreviousExitAbnormally, DisallowReuse] {
        assert!(matches!(policy.about(running), Reuse::Refuse(_)));
    }
}
