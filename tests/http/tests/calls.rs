//! Calls to workers of every kind: as an engine makes them, and as a session does.

mod engine {
    use xdb_http_tests::http::Reactor as Subject;
    type Rig = xdb_http_tests::rig::Rig<Subject>;
    include!("both/calls.rs");
}

mod session {
    use xdb_http_tests::http::Pool as Subject;
    type Rig = xdb_http_tests::rig::Rig<Subject>;
    include!("both/calls.rs");
}
