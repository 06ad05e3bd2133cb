"""Codes of commands that fail: an error's class has one, and some causes have one of their own."""

from __future__ import annotations

from typing import Final

from belay.engine.model.codes.rows import ExplainedCode as Row

_ACTS: Final = "acts.md"
_RUNNING: Final = "running.md"

FAILURES: Final = {
    "Failed": Row(
        "The command could not do what it was asked for.",
        "A program that it needs is missing or failed, or a file or machine is not as it has to be.",
        "The message names the object and the cause; mend that and give the command again.",
    ),
    "InvalidInput": Row(
        "An option, a file or a document holds what cannot be used. Trying again does not help.",
        "A name is misspelt, a value has another form, two options exclude each other.",
        "Correct what stands before the first colon; the command's --help has an example.",
        "reference/commands.md",
    ),
    "InternalError": Row(
        "Belay met a state that its authors did not think of. This is a bug.",
        "",
        "Report it with the output of BELAY_DEBUG=1, which adds the traceback.",
    ),
    "SystemError": Row(
        "The operating system refused a file, a folder or a socket.",
        "Rights, a full disk, a missing folder, a port in use.",
        "Mend what the message names; it is the system's own.",
    ),
    "NoClusterConfigured": Row(
        "No cluster is named, so there is nothing to ask.",
        "KUBECONFIG is not set, ~/.kube/config does not exist, and this is no pod.",
        "Name a kubeconfig with --kubeconfig, or a file of objects with --cluster FILE.",
        _RUNNING,
    ),
    "NotARepository": Row(
        "The folder is no clone of a state repository.",
        "The command was given elsewhere, or desired/ and policies/ are both missing.",
        "Go to the clone, or name it with --repo DIR; belay init begins one.",
        _ACTS,
    ),
    "NothingToChange": Row(
        "The documents say already what the act asks for.",
        "Another person was first, or the change waits in a commit that is not pushed.",
        "Nothing, if it is in force: belay status says so.",
        _ACTS,
    ),
    "UncommittedChanges": Row(
        "A file that the act has to edit has changes of yours.",
        "",
        "Commit or stash them, then give the command again.",
        _ACTS,
    ),
    "NoAuthor": Row(
        "Git does not know your name and address, so an act has no author.",
        "A new machine or account, on which nothing was committed yet.",
        'git config --global user.name "NAME"; git config --global user.email ADDRESS',
        _ACTS,
    ),
    "NoSuchObject": Row(
        "No object of this name is known.",
        "A name is misspelt, of another namespace, or of an object that is gone.",
        "belay get lists the names; the message names the nearest ones.",
        "status.md",
    ),
    # pushing and proposing
    "PushRefused": Row(
        "The server takes no push to this branch.",
        "The branch is protected, or a hook of the server declined the commit.",
        "Propose the commit: --pull-request, or git config belay.pullRequests true.",
        _ACTS,
    ),
    "ForgeRefused": Row(
        "A forge refused a call, or did not answer.",
        "The token is missing, has expired or may too little; the forge's limit of calls was reached.",
        "Do what the message says for the status; the branch is pushed, so a request can be opened by hand.",
        _ACTS,
    ),
    # the API server
    "ApiError": Row(
        "A call of the Kubernetes API failed.", "", "The message holds the server's own words; mend what they name.",
    ),
    "NotFound": Row(
        "The API server does not know the object, its namespace or its kind (404).",
        "It was deleted meanwhile, or the definitions of Belay's kinds are not installed.",
        "Look with kubectl get; install deploy/crds where the kind is missing.",
        "installing.md",
    ),
    "Conflict": Row(
        "Another writer was faster: the object changed after it was read, or the name is taken (409).",
        "",
        "Give the command again; it reads the object once more.",
    ),
    "Gone": Row("A list or watch began from a version that the server no longer has (410).", "", "Try again."),
    "TooManyRequests": Row(
        "The API server or a disruption budget asks to come back later (429).",
        "The server is under load, or a PodDisruptionBudget forbids the eviction now.",
        "Wait; for an eviction look at the budget with kubectl get pdb.",
        "concepts/budget.md",
    ),
    "Forbidden": Row(
        "The account may not do this, or is not known (403, 401).",
        "The role lacks a right, or the credentials have expired.",
        "Renew the credentials, or add the right that the message names; deploy/base holds the roles.",
        "installing.md",
    ),
    "Invalid": Row(
        "The API server refuses the object's content (400, 422).",
        "A field has a value that the kind's definition or an admission policy forbids.",
        "Correct the field that the message names, in Git where the object is declared there.",
    ),
    "Unavailable": Row(
        "The API server gave no usable answer.",
        "It is down, too slow or behind a network that drops the connection.",
        "Try again; kubectl get --raw /readyz says whether it is up.",
        "runbooks.md",
    ),
    # processes
    "StoreUnavailable": Row(
        "Redis does not answer.",
        "It is down, or BELAY_REDIS_URL names another place.",
        "Start it, or correct the address; nothing is lost, as it is working memory.",
        "reference/settings.md",
    ),
    "ValueTooLarge": Row("A value is larger than the store takes.", "", "Report it: values are bounded before."),
    "HistoryUnavailable": Row(
        "The history cannot be read or written.",
        "The database is down, or its volume is full. Decisions never depend on it.",
        "Mend the database that the message names.",
        "history.md",
    ),
    "NoServer": Row(
        "belay server does not answer.",
        "No server runs, or --server names another address.",
        "Start it, or leave --server out where the cluster can be asked itself.",
        _RUNNING,
    ),
    "NotSent": Row(
        "A notification did not reach its receiver.",
        "The receiver refuses, does not answer, or is not allowed as an address.",
        "belay notify test RECEIVER tries it again and says what the receiver answers.",
        "notifications.md",
    ),
    "HostNotAllowed": Row(
        "A receiver's address leads to a place that notifications may not reach.",
        "It is an address inside the cluster or machine, or its name resolves to one.",
        "Name a public host, or allow this one as docs/notifications.md says.",
        "notifications.md",
    ),
    "ActionRefused": Row(
        "An action was not carried out because what it assumed is no longer so.",
        "The object changed between plan and act.",
        "Nothing: the next pass plans from what is there now.",
    ),
    "Superseded": Row(
        "A newer pass or another leader took over.", "", "Nothing: the newer one carries on.", _RUNNING,
    ),
    "ShardLost": Row(
        "This process no longer holds the Lease of its shard.",
        "It was stopped too long, or another one took over.",
        "Nothing: the other one carries on; see kubectl get lease -n belay-system.",
        _RUNNING,
    ),
    "JournalUnreadable": Row(
        "The journal of the sandbox's API server cannot be read.",
        "Its file is damaged or of another version.",
        "Start the sandbox with an empty folder.",
    ),
    "Interrupted": Row("A start was interrupted.", "", "Give the command again."),
}  # fmt: skip

SOURCE: Final = {
    "Unreachable": Row(
        "The repository cannot be reached.",
        "Its host is down, its name does not resolve, or a proxy or network policy is in between.",
        "git ls-remote URL from the same place says more. What was in force stays in force.",
        "runbooks.md",
    ),
    "AccessDenied": Row(
        "The repository refuses the credentials, or its folder belongs to another user.",
        "A token or key has expired or may not read it.",
        "Renew the Secret that the Source names; run as the owner of a local folder.",
    ),
    "BranchNotFound": Row(
        "The repository has no such branch.", "It was renamed or deleted.", "Push it, or change spec.branch.",
    ),
    "NoSuchBranch": Row("There is no branch of this name to look at.", "", "Name one that git branch -r lists."),
    "EmptyTree": Row(
        "No file of the repository could declare anything, although some did before.",
        "A folder was renamed, or a commit removed too much.",
        "Restore the folder. To remove everything, keep one document: a big deletion then asks for confirmation.",
        "acts.md",
    ),
    "EmptyLayer": Row(
        "A layer of the repository declared something and declares nothing now.",
        "Its folder was renamed or emptied.",
        "Restore it, or keep one document in it.",
    ),
    "TooManyFiles": Row("The repository holds more files than are read.", "", "Split it, or narrow spec.path."),
    "TreeTooLarge": Row("The files of the repository are too large together.", "", "Split it, or narrow spec.path."),
    "Unreadable": Row("A file or folder of the source cannot be read.", "Rights.", "Let Belay's user read it."),
    "VerificationFailed": Row(
        "A commit is not signed as the Source asks for, so it is not in force.",
        "It has no signature, or one of a key that is not allowed.",
        "Sign it with a key of spec.verify.allowedSigners and push.",
        "signed.md",
    ),
    "SignersUnreadable": Row(
        "The list of allowed signers cannot be used, so no commit can be verified.",
        "The file is missing, empty, too large or of another form; ssh-keygen or gpg is not installed.",
        "Mount the file, or correct spec.verify.allowedSigners.",
        "signed.md",
    ),
    "OtherSource": Row(
        "A commit was made for another source, or does not say for which one.",
        "The same repository or key serves several clusters.",
        "Commit with the trailer that the message names.",
        "signed.md",
    ),
    "RolledBack": Row(
        "The branch points to a commit that is older than one accepted before.",
        "The branch was reset, or the server was restored from a backup.",
        "Push a new commit that reverts, or set spec.verify.allowRewriteTo.",
        "signed.md",
    ),
    "NotFastForward": Row(
        "The branch was rewritten: its commit does not follow the one accepted before.",
        "git push --force.",
        "Merge the accepted commit, or set spec.verify.allowRewriteTo to the new commit's full name.",
        "signed.md",
    ),
    "LogBroken": Row(
        "The record of accepted revisions was changed by another hand.",
        "",
        "Find out who changed it. Deleting its ConfigMap starts it again.",
        "signed.md",
    ),
    "ObjectMissing": Row(
        "The local copy of the repository lacks an object.",
        "A fetch was interrupted, or the disk lost data.",
        "Nothing: it is fetched again; if it stays, delete the copy in BELAY_DATA.",
    ),
    "MirrorBusy": Row("Another process holds the local copy of the repository.", "", "Nothing: it is tried again."),
    "WorkTreeBusy": Row("git is changing the folder that is read.", "", "Nothing: it is read when git has ended."),
    "CopyUnwritable": Row("The local copy cannot be written.", "", "Set BELAY_DATA to a folder that can be written."),
    "GitFailed": Row("git ended with an error.", "", "The message holds git's own words; mend what they name."),
    "GitTimeout": Row("git did not end in time.", "A slow or silent server.", "It is tried again."),
    "GitOutputTooLarge": Row("git wrote more than is read.", "", "Split the repository."),
    "GitMissing": Row("The git command is not on PATH.", "", "Install git 2.34 or newer."),
    # single files, which are left out
    "LinkRefused": Row("A symbolic link is not followed.", "It leads out of the repository, or in a circle.",
                       "Replace it with the file."),
    "FileTooLarge": Row("A file is larger than is read.", "", "Split it."),
    "NameRefused": Row("A file's name cannot be shown.", "It is no UTF-8, or holds control characters.", "Rename it."),
    "SubmoduleRefused": Row("A submodule is not read.", "", "Copy its files, or add it as a Source of its own."),
    "NotAFile": Row("An entry is no regular file.", "", "Remove it."),
    "MoreRefused": Row("More files are refused than are listed.", "", "Mend those that are listed first."),
}  # fmt: skip
