//! Why is a process where it is? Sentences from `xdb.describe_process`.
//!
//! | file | what it is for |
//! |---|---|
//! | `sentence.rs` | the sentences, without I/O |
//! | `text.rs` | values in sentences: names, durations, moments |

pub mod sentence;
pub mod text;
