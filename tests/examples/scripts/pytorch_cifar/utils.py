import os, sys, time

try:
    _, term_width = os.popen('stty size', 'r').read().split()
except ValueError:
    term_width = 80
term_width = int(term_width)
TOTAL_BAR_LENGTH = 65.
last_time = begin_time = time.time()


def progress_bar(current, total, msg=None):
    global last_time
    cur_len = int(TOTAL_BAR_LENGTH*current/total)
    sys.stdout.write(' [' + '=' * cur_len + '>' + '.' * (64 - cur_len) + ']')
    L = ['  Step: %dms' % 1, ' | Tot: %dms' % 2]
    if msg:
        L.append(' | ' + msg)
    sys.stdout.write(''.join(L))
    for i in range(max(0, term_width-int(TOTAL_BAR_LENGTH)-len(''.join(L))-3)):
        sys.stdout.write(' ')
    for i in range(term_width-int(TOTAL_BAR_LENGTH/2)+2):
        sys.stdout.write('\b')
    sys.stdout.write(' %d/%d ' % (current+1, total))
    if current < total-1:
        sys.stdout.write('\r')
    else:
        sys.stdout.write('\n')
    sys.stdout.flush()
