/* WS-ReliableMessaging 1.1/1.2 (200702), WS-Addressing 2005/08, SOAP 1.2 and 1.1. */
#import "soap12.h"
#import "wsrm.h"
#import "contract.h"
