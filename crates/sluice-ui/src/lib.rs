//! The web page of Sluicegate: what VMs get and why, and changes that are previewed, timed and undone.
//!
//! ```text
//!  browsers --HTTP on 127.0.0.1--> [sluice ui] --HTTP on the control socket, a connection per request--> [daemon]
//!     '<------ /stream: changed cells ------'  '<------- one /v1/stream for all browsers --------------'
//!
//!  browsers --HTTPS, login--> a proxy of the site --HTTP on a Unix socket--> [sluice ui]
//! ```
//!
//! It is a process of a user and has the rights of that user at the daemon. Pages are HTML that is made here. The script only replaces cells and
//! parts of a page that was loaded, so every page works without it.
//!
//! | file | contents |
//! |---|---|
//! | `server` | the port or Unix socket, and the connections on it |
//! | `guard` | who may open pages, and which requests are answered: key, cookie, host, origin, and the headers of every answer |
//! | `daemon`, `feed` | requests to the daemon, and its stream |
//! | `pages` | a file and a template for each page |
//! | `rows`, `sentence`, `stream` | figures as pages and as the stream have them |
//! | `text`, `charts` | how text and charts get into a page |
//!
//! Memory is bounded: by the number of connections, by the length of a request, and because a browser that does not read its stream misses samples and
//! then gets the newest.
#![forbid(unsafe_code)]

mod assets;
mod charts;
mod daemon;
mod done;
mod failure;
mod feed;
mod guard;
mod pages;
mod rows;
mod sentence;
mod server;
mod stream;
mod text;

pub use self::server::{Link, Server};
